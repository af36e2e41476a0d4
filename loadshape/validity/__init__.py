# May these numbers be believed? The verdict on the instrument, never on the server.
#
# Law: computed from the log alone, for the whole run, and printed above every number. Each check asks one
# question, holds one measured value against one limit and says in plain words what it means for the
# numbers and what to do. VALID: all within their limits. INVALID: at least one beyond its second limit.
# SUSPECT is all between; so is a run with a check that could not be made, since nobody can vouch for what
# was not looked at. Limits are data, and are recorded with the verdict.

"""Verdict: VALID, SUSPECT or INVALID, with its reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadshape.log import Log
from loadshape.validity import arrivals, books, host, nodes, probe, receiving, sending, steadiness
from loadshape.validity.finding import Finding, Limits, Status, worst

__all__ = ["Check", "Limits", "Status", "Verdict", "judge"]

Grade = Literal["VALID", "SUSPECT", "INVALID"]
_GRADES: dict[Status, Grade] = {"ok": "VALID", "unknown": "SUSPECT", "suspect": "SUSPECT", "invalid": "INVALID"}


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer. `meaning` and `remedy` are empty for a check that is ok."""

    name: str
    status: Status
    measured: str
    limit: str
    meaning: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the instrument was good enough, why, and by which limits."""

    status: Grade
    checks: tuple[Check, ...]
    limits: Limits

    @property
    def reasons(self) -> tuple[Check, ...]:
        """The checks that are not ok, the worst first."""
        order = ("invalid", "suspect", "unknown")
        return tuple(sorted((it for it in self.checks if it.status != "ok"), key=lambda it: order.index(it.status)))

    @property
    def remedies(self) -> tuple[str, ...]:
        """What to do, each remedy once, in the order of the reasons."""
        return tuple(dict.fromkeys(it.remedy for it in self.reasons if it.remedy))

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.status == "INVALID":
            return "INVALID: the generator, not the server, shaped these numbers; do not use them"
        if self.status == "VALID":
            return "VALID: the instrument was good enough for the numbers below"
        if all(it.status == "unknown" for it in self.reasons):
            return "SUSPECT (platform): nothing was found wrong, but not everything could be looked at"
        return "SUSPECT: usable with the reservations below"

    @property
    def exit_code(self) -> int:
        """3 for an INVALID run, else 0."""
        return 3 if self.status == "INVALID" else 0


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    ask: Callable[..., Finding | None]  # of log, limits and, for some, the window; None: does not apply to this run
    meaning: str
    remedy: str


_FEWER = "use more processes, a lower rate, or a machine with free cores (pin the workers, stop other jobs)"
_UNKNOWN = "This could not be looked at in this run, so nobody can vouch for it."
_QUESTIONS = (
    _Question(
        "lateness",
        sending.find_lateness,
        "Requests left later than planned; every latency counted from due contains the delay.",
        _FEWER,
    ),
    _Question(
        "lateness and TTFT",
        sending.find_lateness_share,
        "The generator's own delay is a visible part of the TTFT that it reports.",
        _FEWER,
    ),
    _Question(
        "sent early",
        sending.find_early,
        "Requests were begun before they were due, so the traffic is not that of the trace.",
        "report it: the pacer must never fire early",
    ),
    _Question(
        "not sent",
        sending.find_not_sent,
        "The server saw less traffic than planned, so it looks faster than it is.",
        "look at the errors of the outcome not_sent; raise the limit of open files, or use more processes",
    ),
    _Question(
        "sent again",
        sending.find_resent,
        "Requests that a stale connection had lost were sent once more: the server may have begun some of them twice, "
        "and their latencies have the lost time in them.",
        "have the server keep idle connections for more than 5 s, or take it as it is: resent in the section [limits]",
    ),
    _Question(
        "proxy",
        sending.find_proxies,
        "Every byte came through a proxy: what it takes is in the latencies, and what it merges is in the gaps.",
        "replay without the proxy; where it belongs to what is measured, say so: proxied = 1 in the section [limits]",
    ),
    _Question(
        "punctuality",
        sending.find_punctuality,
        "In some stretch of the run the offered traffic was not the planned one.",
        _FEWER,
    ),
    _Question(
        "arrivals as planned",
        arrivals.find_arrivals,
        "Taken together the sends are another process than the plan: smoother, or in clumps.",
        _FEWER,
    ),
    _Question(
        "declared process",
        arrivals.find_declared_process,
        "The recipe declares Poisson arrivals, and the sends are none.",
        "look at the check above: if the sends are as planned, the trace is not what its recipe says",
    ),
    _Question(
        "receive lag",
        receiving.find_receive_lag,
        "The process ran behind the kernel; arrival times are the kernel's and stay exact, but it was short of CPU.",
        _FEWER,
    ),
    _Question(
        "stamp order",
        receiving.find_stamp_order,
        "Some bytes were seen before the kernel says they came: its stamps are off by about that much.",
        "see the clock step check; replay when nobody sets the clock",
    ),
    _Question(
        "loop lag",
        receiving.find_loop_lag,
        "Without kernel stamps a read gets its time when the loop comes to it: latencies are too long by this much.",
        "use plain HTTP on Linux, where the kernel stamps; else " + _FEWER,
    ),
    _Question(
        "shared reads",
        receiving.find_shared_reads,
        "Several token events came in one read and share its time: ICL and ITL are intervals there; "
        "TTFT, TPOT and E2E are not touched.",
        "nothing, if the server sends several events at once; else look at the receive lag and the loop lag",
    ),
    _Question(
        "run-queue delay",
        host.find_runqueue,
        "The generator was ready to work and got no core.",
        "leave it a core of its own: stop other jobs, pin, or move the server to another machine",
    ),
    _Question(
        "CPU",
        host.find_cpu,
        "A single-threaded loop this busy queues its own work, in that second at least.",
        "use more processes",
    ),
    _Question(
        "share of the calibrated ceiling",
        host.find_ceiling_share,
        "Near its ceiling the generator has no room for a burst, and its lateness grows fast.",
        "use more processes or a lower rate; calibrate again if the host has changed",
    ),
    _Question(
        "steal",
        host.find_steal,
        "The hypervisor gave the cores of this machine to others.",
        "use a machine with cores of its own",
    ),
    _Question(
        "throttling",
        host.find_throttling,
        "A CPU quota stopped the generator for whole slices of time.",
        "raise or remove the container's CPU limit",
    ),
    _Question(
        "collector pause",
        host.find_gc_pause,
        "The garbage collector stopped a worker; requests due in the pause left late.",
        "report it with the log's health table: workers freeze their heap before the start",
    ),
    _Question(
        "clock step",
        host.find_clock_step,
        "The wall clock was set during the run; kernel stamps are in wall time and may have moved with it.",
        "replay when the clock is not being set; let NTP slew it",
    ),
    _Question(
        "probe against load",
        probe.find_difference,
        "A process that is never busy saw other latencies than the loaded ones: the difference is the generator's.",
        _FEWER,
    ),
    _Question(
        "lost nodes",
        nodes.find_lost,
        "A machine of the run was gone before its end, with the traffic that it had to send.",
        "do not compare this run; find out what ended the node, and replay",
    ),
    _Question(
        "clocks of the nodes",
        nodes.find_clocks,
        "Times of different nodes can be apart by this much: what is in flight over all of them, gaps between arrivals "
        "of different nodes, and the server's samples beside them. Latencies begin and end on one node and stay exact.",
        "have the clocks of all nodes kept by chrony or PTP, put the nodes into one network, or run shorter",
    ),
    _Question(
        "start of the nodes",
        nodes.find_start,
        "By their wall clocks the nodes did not begin together: their streams overlap otherwise than planned.",
        "see the check of the clocks; have the wall clocks kept by one server, and replay when nobody sets them",
    ),
    _Question(
        "niceness of the nodes",
        nodes.find_niceness,
        "Everything else on these nodes goes first: their requests leave late whenever it is busy.",
        "set RAY_worker_niceness=0 in the environment of `ray start` (Ray's own default is 15)",
    ),
    _Question(
        "lateness by node",
        nodes.find_lateness,
        "One machine sent later than the others; among many its requests are too few to show in the whole.",
        "look at that node's row in the report; leave it out, or " + _FEWER,
    ),
    _Question(
        "one row a request",
        books.find_rows,
        "The log does not account for every planned request; percentiles may lack the slow ones.",
        "do not compare this run; replay",
    ),
    _Question(
        "one row a read",
        books.find_reads,
        "The two tables of the log contradict each other, so stamps or counts of some request are wrong.",
        "report it with the log",
    ),
    _Question(
        "end of the run",
        books.find_end,
        "The run did not end as planned: the traffic after that is missing.",
        "replay to the end; if it was stopped because the disk could not keep up, log to a faster one",
    ),
    _Question(
        "Little's law, rows",
        books.find_identity,
        "Requests were begun that never ended, or the other way round: the bookkeeping is wrong.",
        "report it with the log",
    ),
    _Question(
        "Little's law, counters",
        books.find_in_flight,
        "The workers' own count of requests in flight disagrees with the rows.",
        "report it with the log",
    ),
)


_WINDOW_QUESTIONS = (
    _Question(
        "warm-up",
        steadiness.find_warmup,
        "The beginning of the judged window is another state of the server than the rest; both are in the numbers.",
        "declare a longer warm-up (--warmup), or warm the server before the run",
    ),
    _Question(
        "trend",
        steadiness.find_trend,
        "TTFT moves all through the window: the numbers describe no steady state, and a longer run gives others.",
        "run longer, or find what fills up; where it is the queue, see overload",
    ),
    _Question(
        "overload",
        steadiness.find_overload,
        "The server did not keep up with the planned traffic: latencies measure the length of the run.",
        "lower the rate, or search for the largest that is kept; where the overload is the question, read it as such",
    ),
)


def judge(log: Log, limits: Limits | None = None, *, window_s: tuple[float, float] | None = None) -> Verdict:
    """Return the verdict on the run of *log*; never raises for a log that could be opened, however empty.

    The instrument is judged for the whole run. With *window_s*, the part that the numbers are taken from, it is
    asked too whether that was one steady state.
    """
    limits = limits or Limits()
    answers = [(question, question.ask(log, limits)) for question in _QUESTIONS]
    if window_s is not None:
        answers += [(question, question.ask(log, limits, window_s)) for question in _WINDOW_QUESTIONS]
    checks = tuple(_answer(question, found) for question, found in answers if found is not None)
    return Verdict(_GRADES[worst("ok", *(it.status for it in checks))], checks, limits)


def _answer(question: _Question, found: Finding) -> Check:
    if found.status == "ok":
        return Check(question.name, "ok", found.measured, found.limit)
    if found.status == "unknown":
        return Check(question.name, "unknown", found.measured, found.limit, _UNKNOWN)
    return Check(question.name, found.status, found.measured, found.limit, question.meaning, question.remedy)
