"""The notebooks of the examples run from top to bottom in a kernel, and show what they describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from waiting import PATIENCE_S

AGAIN_S = 30
FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
SHOWS = {
    "first_steps": ["stream read_scores", "table", "flow team-scores", "rows of the last preview"],
    "running_job": ["job pumps: ended", "newest rows of write_litres", "watermark", "rows/s"],
    "windows_and_triggers": ["<svg", "too late", "late pane"],
}

pytestmark = [pytest.mark.more, pytest.mark.own_processes, pytest.mark.timeout(600)]


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def executed(name: str, folder: Path) -> Any:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_runs_and_shows_what_it_describes(name: str, tmp_path: Path) -> None:
    """Each is run once: a run starts Spark. `job.show()` replaces the one output of its cell."""
    notebook = executed(name, tmp_path)
    if name == "running_job":
        (cell,) = [cell for cell in notebook.cells if cell.source == "job.show()"]
        (output,) = cell.outputs
        assert output.output_type == "display_data"
        assert "job pumps: ended" in output.data["text/html"]
    shown = [
        str(content)
        for output in outputs(notebook)
        for kind, content in output.get("data", {}).items()
        if kind in ("text/html", "image/svg+xml")
    ]
    for expected in SHOWS[name]:
        assert any(expected in content for content in shown), expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert list(outputs(notebook)) == []


class Kernel:
    """A kernel whose cells can be interrupted, as the button of a notebook does."""

    def __init__(self, folder: Path) -> None:
        self._manager, self._client = start_new_kernel(cwd=str(folder))

    def begin(self, source: str) -> str:
        return str(self._client.execute(source))

    def until_shown(self, cell: str) -> None:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") == cell and message["msg_type"] == "display_data":
                return

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def end(self, cell: str) -> dict[str, Any]:
        """Interrupts again after a while, as a user would: Python drops an interrupt that is raised in a finalizer."""
        for _ in range(int(PATIENCE_S / AGAIN_S)):
            with suppress(Empty):
                reply = self._client.get_shell_msg(timeout=AGAIN_S)
                if reply["parent_header"].get("msg_id") == cell:
                    return dict(reply["content"])
                continue
            self.interrupt()
        raise AssertionError("the cell did not end")

    def value(self, expression: str) -> Any:
        reply = self._client.execute_interactive(
            "", user_expressions={"value": expression}, timeout=PATIENCE_S, output_hook=lambda _: None
        )
        return eval(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def run(self, source: str) -> None:
        reply = self._client.execute_interactive(source, timeout=PATIENCE_S, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", reply["content"]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    opened = Kernel(tmp_path)
    yield opened
    opened.close()


STARTED = """
import time
import millstream as ms

log = ms.connect("log")
log.create_topic("scores", schema="n int")


def send(*numbers):
    with log.producer() as producer:
        for number in numbers:
            producer.send("scores", {"n": number})


def reads(count):
    deadline = time.monotonic() + 200
    while job.progress.rows_read < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return job.progress.rows_read


send(1)
flow = ms.Flow("copying", log="log")
flow.read("scores").write("copies")
job = flow.start()
"""


def test_a_show_that_is_interrupted_leaves_the_job_running_until_it_is_stopped(kernel: Kernel) -> None:
    """Goal: the cell ends without an error, and the job is whole. Method: interrupts, one and several at once."""
    kernel.run(STARTED)
    for count, interrupts in enumerate((1, 3), 1):
        assert kernel.value(f"reads({count})") == count
        cell = kernel.begin("job.show(refresh_s=0.05)")
        kernel.until_shown(cell)
        for _ in range(interrupts):
            kernel.interrupt()
        ended = kernel.end(cell)
        assert ended["status"] == "ok" or (interrupts > 1 and ended["ename"] == "KeyboardInterrupt"), ended
        assert kernel.value("(job.is_running, job.state)") == (True, "running")
        kernel.run(f"send({count + 1})")
    assert kernel.value("reads(3)") == 3
    kernel.run("job.stop()")
    assert kernel.value("(job.is_running, job.state)") == (False, "ended")
    kernel.run("flow.run(until='caught up', progress='none')")  # nothing holds it
    copied = "sorted(record.value['n'] for record in log.consumer('copies').until_caught_up())"
    assert kernel.value(copied) == [1, 2, 3]
