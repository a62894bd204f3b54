//! Every pipeline schedule as a picture: `cargo run --example draw`.

use schedule::{Links, Pipeline, Schedule, Ticks, simulate};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let (stages, micro_batches, ticks) = (3, 6, Ticks { forward: 1, input: 1, weights: 1 });
    for schedule in
        [Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved1F1B, Schedule::ZeroBubble, Schedule::ZbV]
    {
        let pipeline = Pipeline::new(schedule, stages, schedule.default_virtual_stages(), micro_batches)?;
        let takes = |_stage, action| ticks.of(action);
        let timeline = simulate(&pipeline, &pipeline.program(), &takes, Links::FREE)?;
        println!("{}: {} of {} units of time idle on stage 0", schedule.name(), timeline.bubble(0), timeline.end());
        println!("{}", timeline.picture());
        assert_eq!(Some(timeline.bubble(0)), pipeline.bubble(ticks), "the formula of the bubble");
    }
    Ok(())
}
