//! `train plan --html`: a plan as a page.

use crate::config::Config;
use crate::format::{bytes, human};
use crate::plan::layout::different_ranks;
use crate::plan::memory_check::over_step;
use crate::plan::step_plan::StepPlan;
use ::report::STYLE;
use fsdp::{Bytes, Category};
use plan::chart::{Layer, curve, stack};
use plan::{Activity, Cluster, LEGEND, Timeline, shown_time};
use schedule::Op;

/// Points of a plot at most; more cannot be told apart.
const POINTS: usize = 1500;

/// Returns the page: `text` is what the command prints.
pub fn page(config: &Config, cluster: &Cluster, timeline: &Timeline, text: &str) -> String {
    let (title, table) = text.split_once("\n\n").unwrap_or((text, ""));
    let memory = memory(config, timeline);
    let scaling = scaling(config, cluster);
    let title = in_html(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>{STYLE}\n.card svg {{ width: 100%; }} .card pre {{ margin: 0; overflow-x: auto; }}</style>\n</head>\n<body>\n\
         <p id=\"product\">Kiln <span>plan</span></p>\n<h1>{title}</h1>\n\
         <div class=\"card\"><pre>{}</pre></div>\n\
         <h2>A step <small>one rank of each stage; empty: waiting for a stage</small></h2>\n\
         <div class=\"card\">{}{}</div>\n{memory}{scaling}</body>\n</html>\n",
        in_html(table.trim_end()),
        timeline.svg(),
        keys(LEGEND.into_iter()),
    )
}

/// Names of colours.
fn keys<'a>(of: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let key = |(color, name)| format!("<span><i class=\"swatch\" style=\"background:{color}\"></i>{name}</span> ");
    format!("<div class=\"keys\">{}</div>", of.map(key).collect::<String>())
}

/// What the rank that needs the most holds over the step.
fn memory(config: &Config, timeline: &Timeline) -> String {
    let ranks = different_ranks(config);
    let most = |held: &Vec<(Op, Bytes)>| held.iter().map(|(_, bytes)| bytes.total()).max().unwrap_or(0);
    let all = over_step(config, &ranks);
    let Some((i, held)) = all.iter().enumerate().max_by_key(|(_, held)| most(held)) else { return String::new() };
    let held = thinned(&ends(held, timeline, i));
    let ends: Vec<f64> = held.iter().map(|(end, _)| *end).collect();
    let layers: Vec<Layer> = Category::ALL
        .into_iter()
        .enumerate()
        .map(|(i, category)| Layer {
            name: category.name().into(),
            color: format!("var(--m{i})"),
            heights: held.iter().map(|(_, bytes)| bytes[category] as f64).collect(),
        })
        .filter(|layer| layer.heights.iter().any(|height| *height > 0.0))
        .collect();
    let plot = stack(&ends, &layers, &|height| bytes(height as usize), &shown_time);
    format!(
        "<h2>Memory over the step <small>rank {}, without what operations need while they run</small></h2>\n\
         <div class=\"card\">{plot}{}</div>\n",
        ranks[i],
        keys(layers.iter().map(|Layer { name, color, .. }| (color.as_str(), name.as_str())))
    )
}

/// When each operation of a rank ends, with what it holds then.
fn ends(held: &[(Op, Bytes)], timeline: &Timeline, rank: usize) -> Vec<(f64, Bytes)> {
    let is_own = |activity| !matches!(activity, Activity::Transfer(_));
    let mut spans = timeline.spans().iter().filter(|span| span.rank == rank && is_own(span.activity)).peekable();
    let mut now = 0.0;
    let end = |(op, bytes): &(Op, Bytes)| {
        while let Some(span) = spans.next_if(|span| span.op == *op) {
            now = span.end;
        }
        (now, *bytes)
    };
    held.iter().map(end).collect()
}

/// At most so many points, each with the most that is held up to it.
fn thinned(held: &[(f64, Bytes)]) -> Vec<(f64, Bytes)> {
    let most = |part: &[(f64, Bytes)]| {
        let bytes = part.iter().map(|(_, bytes)| *bytes).max_by_key(Bytes::total);
        (part[part.len() - 1].0, bytes.expect("a part is not empty"))
    };
    held.chunks(held.len().div_ceil(POINTS).max(1)).map(most).collect()
}

/// The speed with fewer and with more ranks and the same batch, where that is possible.
fn scaling(config: &Config, cluster: &Cluster) -> String {
    let gpus = config.parallel.gpus;
    let speed = |gpus: usize| {
        let mut config = config.clone();
        config.parallel.gpus = gpus;
        let room = cluster.ranks().is_none_or(|room| gpus <= room);
        let plan = (room && config.validate().is_ok()).then(|| StepPlan::new(&config, cluster));
        Some((gpus, plan?.ok()?.figures.tokens_per_second))
    };
    let numbers = [gpus / 4, gpus / 2, gpus, gpus * 2, gpus * 4, gpus * 8];
    let speeds: Vec<(usize, f64)> = numbers.into_iter().filter(|gpus| *gpus > 0).filter_map(speed).collect();
    let [(first, of_first), _, ..] = speeds[..] else { return String::new() };
    let names: Vec<String> = speeds.iter().map(|(gpus, _)| format!("{gpus} ranks")).collect();
    let (values, ideal): (Vec<f64>, Vec<f64>) =
        speeds.iter().map(|(gpus, speed)| (*speed, of_first * *gpus as f64 / first as f64)).unzip();
    let plot = curve(&names, &values, &ideal, "var(--c0)", &|rate| human(rate as usize));
    format!(
        "<h2>More and fewer ranks <small>tokens/s with the same batch; dashed: in proportion to the ranks</small></h2>\n\
         <div class=\"card\">{plot}</div>\n"
    )
}

fn in_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
