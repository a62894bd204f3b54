"""Makes the event file that the writer of TensorBoard's events is compared with, byte for byte: TensorBoard's own messages and
record writer, with fixed times.

    pip install tensorboard
    python tests/reference/make_events.py

The checked-in file comes from Python 3.11, tensorboard 2.21 and protobuf 7.36. The script reads the file back with
EventAccumulator and fails if the values are not those it wrote.
"""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

FILE = Path(__file__).parent / "events" / "events.out.tfevents.1700000000.fixture.1"

# Step, and values by tag: no step, several values, zero and negative ones, a long tag, a step of more than 32 bits, no value.
STEPS = [
    (0, [("loss", 5.5)]),
    (1, [("loss_metrics/global_avg_loss", 5.4371), ("grad_norm", 0.0), ("mfu(%)", -1.5)]),
    (300, [("a tag of more than 127 bytes: " + "ä" * 60, 1e-30)]),
    (2**40 + 1, [("loss", 1e300)]),
    (2**40 + 2, []),
]


def main():
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for index, (step, values) in enumerate(STEPS):
            values = [Summary.Value(tag=tag, simple_value=to_f32(value)) for tag, value in values]
            event = Event(wall_time=1.7e9 + index + 0.25, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())
        writer.flush()

    accumulator = EventAccumulator(str(FILE.parent)).Reload()
    read = {(tag, e.step): e.value for tag in accumulator.Tags()["scalars"] for e in accumulator.Scalars(tag)}
    written = {(tag, step): to_f32(value) for step, values in STEPS for tag, value in values}
    assert read == written, (read, written)


def to_f32(value):
    import numpy

    with numpy.errstate(over="ignore"):
        return float(numpy.float32(value))


if __name__ == "__main__":
    main()
