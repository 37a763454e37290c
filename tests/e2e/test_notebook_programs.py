"""notebooks/train_steps.py: training without epochs learns, is ended at any time, and goes on with the next sample."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

import wids
from tests.support import paths
from tests.support.launch import LIMIT_SECONDS, environment, forked_ranks, start, torchrun

pytestmark = pytest.mark.outside

NOTEBOOKS = paths.ROOT / "notebooks"
PROGRAM = str(NOTEBOOKS / "train_steps.py")
TRAIN_SAMPLES, TEST_SAMPLES = 1347, 450
SMALL = ["--batch-size", "12", "--log-every", "5", "--checkpoint-every", "10", "--test-every", "100000"]
ENDLESS = ["--steps", "1000000"]


@pytest.fixture
def place(tmp_path):
    """Where a test's runs write, and what their processes see."""
    (tmp_path / "t").mkdir()
    return tmp_path, environment(TMPDIR=str(tmp_path / "t"))


def command(world, *options, is_real=False):
    """The program on so many ranks, under torchrun if that is asked for; one needs no launcher."""
    launcher = torchrun if is_real else forked_ranks
    return [*([sys.executable] if world == 1 else launcher(world)), PROGRAM, *map(str, options)]


@contextlib.contextmanager
def started(place, world, *options, is_real=False):
    """A run and the file of what it says; it is ended with the block, and with all that it started."""
    directory, env = place
    output = directory / "output.txt"
    output.write_bytes(b"")
    process = start(command(world, *options, is_real=is_real), env=env, output=output)
    try:
        yield process, output
    finally:
        if process.poll() is None:  # a launcher ends its ranks on SIGTERM; SIGKILL would orphan them
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(place, world, *options):
    """A run to its end; gives what it said."""
    with started(place, world, *options) as (process, output):
        code = process.wait(LIMIT_SECONDS)
        assert code == 0, output.read_text()
    return output.read_text()


def run_until(place, log, step, number, world, *options, is_real=False):
    """A run that is sent a signal once ``log`` has a step of so many; gives its exit code and what it said."""
    with started(place, world, *options, is_real=is_real) as (process, output):
        deadline = time.monotonic() + LIMIT_SECONDS
        while last_step(log) < step:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        process.send_signal(number)
        code = process.wait(LIMIT_SECONDS)
    return code, output.read_text()


def lines(path):
    """What a run wrote, without a last line that is not whole."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def last_step(log):
    """The last step that any rank has taken."""
    return max((line[0] for line in lines(log)), default=0)


def sequence(log):
    """(step, number in the global batch) -> sample, in order; a step that was taken twice had the same samples."""
    found = {}
    for step, rank, world, indices in lines(log):
        for k, index in enumerate(indices):
            assert found.setdefault((step, k * world + rank), index) == index
    return dict(sorted(found.items()))


def program():
    """The program as a module."""
    sys.path.insert(0, str(NOTEBOOKS))
    try:
        return importlib.import_module("train_steps"), importlib.import_module("bucket")
    finally:
        sys.path.remove(str(NOTEBOOKS))


@pytest.mark.parametrize(("world", "steps"), [(1, 96), (4, 24)])
def test_learns(world, steps, place, tmp_path):
    """97 % of the digits after 96 steps; that number is exact, and no sample was had two times more than another."""
    samples, losses, checkpoint = tmp_path / "samples", tmp_path / "losses", tmp_path / "run.pt"
    options = ["--steps", steps, "--cooldown", 40 * steps // 96, "--log-samples", samples, "--log-losses", losses]
    run(place, world, *options, "--checkpoint", checkpoint)
    *_, last = lines(losses)
    assert last["step"] == steps
    assert last["count"] == TEST_SAMPLES  # on 4 ranks, too, which do not divide it
    assert steps < 96 or last["right"] >= 0.97 * TEST_SAMPLES
    order = sequence(samples)
    assert list(order) == [(step, k) for step in range(1, steps + 1) for k in range(64)]
    seen = Counter(order.values())
    assert len(seen) == TRAIN_SAMPLES
    assert set(seen.values()) == {steps * 64 // TRAIN_SAMPLES, steps * 64 // TRAIN_SAMPLES + 1}

    train_steps, bucket = program()
    digits = bucket.digits(str(tmp_path))
    dataset = wids.ShardListDataset(f"{digits.directory}/test.json")
    dataset = dataset.add_transform(train_steps.ToTensors(32, is_training=False))
    arguments = train_steps.argparse.Namespace(model="small", seed=0, classes=10)
    model = train_steps.make_model(arguments).eval()
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    images, labels, _, _ = zip(*dataset, strict=True)
    with torch.no_grad():
        right = (model(torch.stack(images)).argmax(1) == torch.tensor(labels)).sum().item()
    assert abs(right - last["right"]) <= 1  # sums of floats in another order may turn one that is undecided


def test_killed_and_ended_and_resumed(place, tmp_path):
    """Killed alone, ended by SIGTERM on two ranks, resumed alone: the samples are those of a run without all that."""
    log, checkpoint = tmp_path / "samples", tmp_path / "run.pt"
    options = [*SMALL, "--log-samples", log, "--checkpoint", checkpoint, "--resume"]
    code, _ = run_until(place, log, 25, signal.SIGKILL, 1, *options, *ENDLESS)
    assert code == -signal.SIGKILL
    killed = torch.load(checkpoint)["step"]
    assert killed >= 20
    assert killed % 10 == 0

    _, said = run_until(place, log, last_step(log) + 20, signal.SIGTERM, 2, *options, *ENDLESS, is_real=True)
    ended = torch.load(checkpoint)["step"]
    assert f"goes on after step {killed:,}\n" in said
    assert f"told to stop: ended after step {ended:,}\n" in said
    assert ended == last_step(log)  # nothing that was trained on is lost

    said = run(place, 1, *options, "--steps", ended + 15)
    assert f"goes on after step {ended:,}\n" in said
    whole = tmp_path / "whole"
    run(place, 1, *SMALL, "--log-samples", whole, "--steps", ended + 15)
    assert sequence(log) == sequence(whole)
    assert len(sequence(whole)) == 12 * (ended + 15)


def test_ended_with_workers(place, tmp_path):
    """The same with workers that draw ahead and are signalled too, and iterations that end, from two ranks to one.

    Which goes on without workers: the position in the data does not depend on them.
    """
    log, checkpoint = tmp_path / "samples", tmp_path / "run.pt"
    options = [*SMALL, "--epoch-size", "84", "--log-samples", log, "--checkpoint", checkpoint]
    run_until(place, log, 30, signal.SIGTERM, 2, *options, "--workers", "1", *ENDLESS)
    ended = torch.load(checkpoint)["step"]
    assert ended == last_step(log)
    total = ["--steps", ended + 15]
    run(place, 1, *options, "--resume", *total)
    whole = tmp_path / "whole"
    run(place, 2, *SMALL, "--log-samples", whole, *total)  # where nominal epochs end changes no order
    assert sequence(log) == sequence(whole)
    assert len(sequence(whole)) == 12 * (ended + 15)


def test_ends_when_told(place, tmp_path):
    """Alone, SIGTERM ends it with exit code 0, and nothing of it stays in the temporary directory."""
    log = tmp_path / "samples"
    code, said = run_until(place, log, 5, signal.SIGTERM, 1, *SMALL, "--log-samples", log, *ENDLESS)
    assert code == 0, said
    assert "told to stop" in said
    assert list((tmp_path / "t").iterdir()) == []


def test_neither_warmup_nor_cooldown(place, tmp_path):
    """Both may be 0: the learning rate is level then, and not a division by zero."""
    losses = tmp_path / "losses"
    run(place, 1, *SMALL, "--steps", 2, "--warmup", 0, "--cooldown", 0, "--log-losses", losses)
    assert lines(losses)[-1]["step"] == 2
    train_steps, _ = program()
    arguments = train_steps.argparse.Namespace(warmup=0, cooldown=0, steps=2)
    assert [train_steps.rate(arguments, step) for step in (1, 2)] == [1, 1]


def test_the_picture_of_the_readme(tmp_path):
    """notebooks/ranks.py draws it from what is counted, and the README's words are these counts."""
    code = (
        "import json, sys; import ranks; names = ranks.run_cells(); ranks.draw(names, sys.argv[1])\n"
        "print(json.dumps({way: names['facts'](way, names['world_size']) for way in ranks.TITLES}, default=int))"
    )
    drawn = tmp_path / "ranks.png"
    env = environment(TMPDIR=str(tmp_path), MPLBACKEND="Agg")
    done = subprocess.run(
        [sys.executable, "-c", code, str(drawn)], cwd=NOTEBOOKS, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    dealt, of_torch, ours = json.loads(done.stdout.splitlines()[-1]).values()
    readme = (paths.ROOT / "README.md").read_text()
    assert f"the job hangs at step {dealt['steps together'] + 1}." in readme
    assert f"DistributedSampler: {of_torch['fetched in all']} downloads." in readme
    assert f"wids: equal steps, {ours['fetched in all']} downloads." in readme
    for picture in (drawn, NOTEBOOKS / "ranks.png"):
        assert picture.stat().st_size < 150_000
