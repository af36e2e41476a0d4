# What the kernel knows of the way to the server, asked once a request.
#
# Law: one system call at the end of a request, never on the way. The values are the kernel's: its smoothed round
# trip time, and how often it had to send something of ours again. They tell a slow network from a slow server.
#
# Source: struct tcp_info, include/uapi/linux/tcp.h: 8 bytes, then 32-bit words; tcpi_rtt in us at byte 68,
# tcpi_total_retrans at byte 100, counted over the life of the connection. What the server had to send again is
# not in them: that only its own kernel knows.

"""Path: round trip time and retransmissions of a connection (TCP_INFO)."""

from __future__ import annotations

import socket
import struct
import sys

from loadshape.plan import NULL
from loadshape.replayer.connection import Connection

INFO_BYTES = 104
_RTT_US, _RETRANSMITS = struct.Struct("@68xI"), struct.Struct("@100xI")


def measure_path(connection: Connection) -> tuple[int, int]:
    """Return (rtt_ns, retransmissions since this was asked last) of *connection*; NULL where nobody knows."""
    handle = connection.handle
    if sys.platform != "linux" or not isinstance(handle, socket.socket):
        return NULL, NULL
    try:
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except OSError:  # closed
        return NULL, NULL
    (rtt_us,), (retransmits,) = _RTT_US.unpack_from(info), _RETRANSMITS.unpack_from(info)
    before, connection.retransmits = connection.retransmits, retransmits
    return rtt_us * 1000 or NULL, retransmits - before
