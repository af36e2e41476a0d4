"""Real worker processes that end before they are told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadshape.errors import InputError
from loadshape.replayer import crew as crew_module
from loadshape.replayer.crew import Crew
from loadshape.replayer.job import Job, Settings, Stop
from loadshape.target import Target

STOP = Stop(grace_s=0.0, reason="x" * 1000)


def make_jobs(log: Path, count: int = 1) -> list[Job]:
    """Return jobs that every worker refuses, since there is no trace."""
    return [
        Job(
            trace=str(log / "none.trace"),
            log=str(log),
            run="0a0b0c0d",
            worker=worker,
            targets=[Target("http://127.0.0.1:9/v1", model="m")],
            addresses=[["127.0.0.1"]],
            settings=Settings(processes=count),
        )
        for worker in range(count)
    ]


def test_a_worker_that_has_ended_may_still_be_spoken_to(tmp_path: Path) -> None:
    with Crew(make_jobs(tmp_path)) as crew:
        crew._processes[0].wait(30)
        crew.tell(STOP)  # stays in the buffer of a broken pipe
    assert crew._processes[0].returncode == 1


def test_an_interrupt_while_workers_start_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crew, started = Crew(make_jobs(tmp_path, 2)), []

    class Interrupted(crew_module.subprocess.Popen):  # type: ignore[type-arg,name-defined,misc]
        def __init__(self, *words: object, **options: object) -> None:
            if started:
                raise KeyboardInterrupt
            started.append(self)
            super().__init__(*words, **options)

    monkeypatch.setattr(crew_module.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), crew:
        pytest.fail("it was interrupted before")
    assert started[0].returncode is not None


def test_what_a_worker_refuses_is_the_user_s_to_fix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.trace"), Crew(make_jobs(tmp_path)) as crew:
        crew.gather_ready(30.0)
