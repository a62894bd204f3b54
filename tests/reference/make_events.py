"""Makes the reference event files for the writer of TensorBoard events, which is compared with them byte for byte:
TensorBoard's own messages and record writer, with fixed times. The second file is that of a process that resumes the
run and repeats step 300.

    pip install tensorboard
    python tests/reference/make_events.py

The checked-in files come from Python 3.11, tensorboard 2.21 and protobuf 7.36. The script reads them back with
EventAccumulator and fails unless the values are those that it wrote, with repeated steps replaced.
"""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

FOLDER = Path(__file__).parent / "events"

# Step, and values by tag: no step, several values, zero and negative ones, a long tag, a step of more than 32 bits, no
# value.
STEPS = [
    (0, [("loss", 5.5)]),
    (1, [("loss_metrics/global_avg_loss", 5.4371), ("grad_norm", 0.0), ("mfu(%)", -1.5)]),
    (300, [("a tag of more than 127 bytes: " + "ä" * 60, 1e-30)]),
    (2**40 + 1, [("loss", 1e300)]),
    (2**40 + 2, []),
]


# What the second process repeats, starting at the first of these steps.
AGAIN = [(300, [("loss", 2.5)]), (301, [("loss", 2.25)])]


def main():
    FOLDER.mkdir(exist_ok=True)
    write(FOLDER / "events.out.tfevents.1700000000.fixture.1", 1.7e9, [], STEPS)
    start = Event(wall_time=1.7e9 + 100, step=AGAIN[0][0], session_log=SessionLog(status=SessionLog.START))
    write(FOLDER / "events.out.tfevents.1700000100.fixture.2", 1.7e9 + 100, [start], AGAIN)

    accumulator = EventAccumulator(str(FOLDER)).Reload()
    read = [(tag, e.step, e.value) for tag in accumulator.Tags()["scalars"] for e in accumulator.Scalars(tag)]
    kept = [(step, values) for step, values in STEPS if step < AGAIN[0][0]] + AGAIN
    written = [(tag, step, to_f32(value)) for step, values in kept for tag, value in values]
    assert sorted(read) == sorted(written), (read, written)


def write(path, start, first, steps):
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in [Event(wall_time=start, file_version="brain.Event:2"), *first]:
            writer.write(event.SerializeToString())
        for index, (step, values) in enumerate(steps):
            values = [Summary.Value(tag=tag, simple_value=to_f32(value)) for tag, value in values]
            event = Event(wall_time=start + index + 0.25, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())
        writer.flush()


def to_f32(value):
    import numpy

    with numpy.errstate(over="ignore"):
        return float(numpy.float32(value))


if __name__ == "__main__":
    main()
