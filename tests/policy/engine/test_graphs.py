"""A graph is loaded or it is said why not, and a run of it ends when its deadline does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from wayfix.agent.deadline import Deadline
from wayfix.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineCorrupt,
    EngineOutOfMemory,
    EngineUnsupported,
    PolicyFailed,
    WayfixError,
)
from wayfix.policy.engine.graphs import Watch, load_graph
from wayfix.policy.engine.sequence import bind

ENDLESS = 10**8
"""Rounds of a loop, of which a processor manages less than a million a second."""
WAIT_S = 60.0
"""After this long a test has failed; none is meant to take any part of it."""

Run = Callable[[Watch, int], int]
"""Counts to a number; gives what it counted to."""


def write(path: Path, nodes: list[Any], inputs: dict[str, list[int]], output: str) -> Path:
    """A graph of int64s with one output, a scalar."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, kind, [])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that counts to `count`, one by one."""
    onnx = pytest.importorskip("onnx")
    node, info, kinds = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.TensorProto
    body = onnx.helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Sub", ["at", "minus_one"], ["next"])],
        "round",
        [info("round", kinds.INT64, []), info("going", kinds.BOOL, []), info("at", kinds.INT64, [])],
        [info("still", kinds.BOOL, []), info("next", kinds.INT64, [])],
    )
    loop = node("Loop", ["count", "", "start"], ["end"], body=body)
    path = tmp_path_factory.mktemp("graphs") / "counter.onnx"
    return write(path, [loop], {"count": [], "start": [], "minus_one": []}, "end")


@pytest.fixture
def count(counter: Path) -> Run:
    session = load_graph(counter, ["CPU"], 1, False)

    def run(watch: Watch, to: int) -> int:
        values = {"count": to, "start": 0, "minus_one": -1, "end": 0}
        arrays = {name: np.array(value, np.int64) for name, value in values.items()}
        binding = session.io_binding()
        for name, array in arrays.items():
            bind(binding.bind_output if name == "end" else binding.bind_input, name, array)
        watch.run(session, binding)
        return int(arrays["end"])

    return run


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wayfix-engine-watch"]


@pytest.fixture(autouse=True)
def no_watcher_is_left() -> Iterator[None]:
    yield
    assert watchers() == []


class TestLoading:
    def test_a_file_that_is_no_graph_or_not_there_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "words.onnx").write_text("words", encoding="utf-8")
        for name in ("words.onnx", "nothing.onnx"):
            with pytest.raises(EngineCorrupt, match=name):
                load_graph(tmp_path / name, ["CPU"], 1, False)

    @pytest.mark.parametrize("providers", [["CPU"], ["CPUExecutionProvider"]])
    def test_a_provider_goes_by_either_name(self, counter: Path, providers: list[str]) -> None:
        assert load_graph(counter, providers, 1, False).get_providers() == ["CPUExecutionProvider"]

    @pytest.mark.parametrize("providers", [["Quantum"], ["CPU", "Quantum"], []])
    def test_no_provider_is_left_out_in_silence(self, counter: Path, providers: list[str]) -> None:
        # onnxruntime itself would warn, and run on another one.
        with pytest.raises(EngineUnsupported, match=r"it has .*CPU"):
            load_graph(counter, providers, 1, False)

    def test_threads_and_spinning_are_as_asked_for(self, counter: Path) -> None:
        for threads, spin in ((1, False), (3, True)):
            options = load_graph(counter, ["CPU"], threads, spin).get_session_options()
            assert options.intra_op_num_threads == threads
            assert options.get_session_config_entry("session.intra_op.allow_spinning") == str(int(spin))

    @pytest.mark.parametrize(
        "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("Cannot allocate memory")]
    )
    def test_a_graph_too_large_for_the_machine_is_told_from_a_damaged_one(
        self, counter: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(ort, "InferenceSession", refuse)
        with pytest.raises(EngineOutOfMemory, match=counter.name):
            load_graph(counter, ["CPU"], 1, False)


class TestRunning:
    def test_a_run_within_its_time_gives_what_the_graph_says(self, count: Run) -> None:
        with Watch(Deadline(WAIT_S)).watching() as watch:
            assert [count(watch, 1000), count(watch, 7)] == [1000, 7]

    def test_a_run_that_is_under_way_ends_with_the_deadline(self, count: Run) -> None:
        # Minutes of work, if nothing ended it.
        deadline = Deadline(0.2)
        with pytest.raises(DeadlineExceeded), Watch(deadline).watching() as watch:
            count(watch, ENDLESS)
        assert deadline.elapsed() < WAIT_S

    def test_a_run_that_is_under_way_ends_when_it_is_cancelled(self, count: Run) -> None:
        deadline = Deadline(math.inf)
        timer = threading.Timer(0.1, deadline.cancel)
        timer.start()
        with pytest.raises(Cancelled), Watch(deadline).watching() as watch:
            count(watch, ENDLESS)
        timer.join()
        assert deadline.elapsed() < WAIT_S

    @pytest.mark.parametrize("cancelled", [True, False])
    def test_nothing_is_begun_once_it_is_over(self, count: Run, cancelled: bool) -> None:
        deadline = Deadline(math.inf if cancelled else 0.0)
        if cancelled:
            deadline.cancel()
        with pytest.raises(Cancelled if cancelled else DeadlineExceeded):
            # Unwatched nothing would end this run.
            count(Watch(deadline), ENDLESS)

    def test_one_that_was_cut_off_spoils_none_that_follows(self, count: Run) -> None:
        with pytest.raises(DeadlineExceeded), Watch(Deadline(0.05)).watching() as watch:
            count(watch, ENDLESS)
        with Watch(Deadline(WAIT_S)).watching() as watch:
            assert count(watch, 1000) == 1000

    def test_the_end_of_a_deadline_is_not_printed(self, count: Run, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(DeadlineExceeded), Watch(Deadline(0.05)).watching() as watch:
            count(watch, ENDLESS)
        assert capfd.readouterr() == ("", "")

    def failing(self, path: Path, operator: str, inputs: dict[str, list[int]]) -> WayfixError:
        """What is raised by a graph of one operator whose result is summed up."""
        onnx = pytest.importorskip("onnx")
        nodes = [
            onnx.helper.make_node(operator, list(inputs), ["x"]),
            onnx.helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        ]
        shapes = {name: [len(value)] for name, value in inputs.items()}
        session = load_graph(write(path, nodes, shapes, "sum"), ["CPU"], 1, False)
        arrays = {name: np.array(value, np.int64) for name, value in inputs.items()}
        end = np.zeros((), np.int64)
        binding = session.io_binding()
        for name, array in arrays.items():
            bind(binding.bind_input, name, array)
        bind(binding.bind_output, "sum", end)
        with pytest.raises(WayfixError) as caught:
            Watch(Deadline(math.inf)).run(session, binding)
        return caught.value

    def test_a_graph_that_fails_is_the_policys_failure_with_the_reason(self, tmp_path: Path) -> None:
        error = self.failing(tmp_path / "gather.onnx", "Gather", {"data": [1, 2], "indices": [99]})
        assert type(error) is PolicyFailed
        assert "99" in str(error)

    def test_a_step_without_memory_says_so(self, tmp_path: Path) -> None:
        # More bytes than a processor can address.
        error = self.failing(tmp_path / "huge.onnx", "Expand", {"data": [1], "shape": [2**50]})
        assert type(error) is EngineOutOfMemory
        assert "budgets" in str(error)


class TestWatching:
    def test_its_thread_lives_as_long_as_it_is_entered(self) -> None:
        with Watch(Deadline(WAIT_S)).watching():
            assert len(watchers()) == 1
        assert watchers() == []

    def test_its_thread_ends_whatever_ends_the_turn(self) -> None:
        with pytest.raises(KeyError), Watch(Deadline(WAIT_S)).watching():
            raise KeyError
        assert watchers() == []

    def test_several_turns_watch_each_for_itself(self, count: Run) -> None:
        cancelled = Deadline(math.inf)
        with Watch(Deadline(WAIT_S)).watching() as watch, Watch(cancelled).watching() as other:
            cancelled.cancel()
            with pytest.raises(Cancelled):
                count(other, ENDLESS)
            assert count(watch, 1000) == 1000
