# Time limits, which are outcomes, and planned aborts, which are part of the traffic.
#
# Law: pure arithmetic. A request has one deadline at a time, the nearest of those that apply to what it
# waits for; it moves as the request gets on. Nobody polls: deadlines lie in a heap and are looked at again
# only when they pass.

"""Limits: when a request in flight has waited for too long, and for what."""

from __future__ import annotations

from loadshape.log import Outcome
from loadshape.plan import NULL, Plan
from loadshape.replayer.exchange import Exchange
from loadshape.replayer.job import Settings
from loadshape.replayer.scheduler import NEVER
from loadshape.units import to_ns

LINGER_NS = 1_000_000_000  # how long the end of a body may take after everything was said; the session goes on
EXPLAINED = {
    Outcome.timeout_connect: "no connection within the limit",
    Outcome.timeout_first: "no token within the limit",
    Outcome.timeout_idle: "the stream was silent for longer than the limit",
    Outcome.timeout_total: "not finished within the limit",
    Outcome.cancelled: "planned: the client gave up after its patience",
}


class Limits:
    """The time limits of a run, in ns."""

    def __init__(self, settings: Settings) -> None:
        self._connect_ns = _to_limit(settings.timeout_connect_s)
        self._first_ns = _to_limit(settings.timeout_first_s)
        self._idle_ns = _to_limit(settings.timeout_idle_s)
        self._total_ns = _to_limit(settings.timeout_total_s)
        self.shortest_ns = min(self._connect_ns, self._first_ns, self._idle_ns, self._total_ns)

    def find_deadline(self, exchange: Exchange, plan: Plan) -> tuple[int, Outcome]:
        """Return the nearest deadline of *exchange* as it is now, and the outcome when it passes."""
        if exchange.sent_ns == NULL:
            nearest = (exchange.begun_ns + self._connect_ns, Outcome.timeout_connect)
        elif exchange.stale_ns > exchange.resent_ns:  # it waits for another connection
            nearest = (exchange.stale_ns + self._connect_ns, Outcome.timeout_connect)
        elif exchange.response.is_done:
            nearest = (exchange.last_read_ns + LINGER_NS, Outcome.timeout_idle)
        elif exchange.first_token_ns == NULL:
            nearest = (max(exchange.sent_ns, exchange.resent_ns) + self._first_ns, Outcome.timeout_first)
        else:
            nearest = (exchange.last_read_ns + self._idle_ns, Outcome.timeout_idle)
        nearest = min(nearest, (exchange.begun_ns + self._total_ns, Outcome.timeout_total))
        abort_ns = plan.abort_ns[exchange.position]
        return nearest if abort_ns == NULL else min(nearest, (exchange.due_ns + abort_ns, Outcome.cancelled))

    def has_had_enough(self, exchange: Exchange, plan: Plan) -> bool:
        """Return whether the plan makes the client leave after the tokens that have come."""
        enough = plan.abort_tokens[exchange.position]
        return enough != NULL and exchange.tokens >= enough


def _to_limit(limit_s: float | None) -> int:
    return NEVER if limit_s is None else to_ns(limit_s)
