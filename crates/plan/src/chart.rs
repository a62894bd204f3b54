//! Plots of a plan as SVG: bytes over a step, and speed over numbers of ranks.

use std::fmt::Write;

// Pixels: the plot, and the space for the labels left of it and below it.
const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 80.0;
const BELOW: f64 = 34.0;

/// A layer of a stack: its name, its colour in CSS, and its height at each point.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// What the tooltip says.
    pub name: String,
    /// A colour.
    pub color: String,
    /// One for each point.
    pub heights: Vec<f64>,
}

/// Draws layers one above the other, each constant from a point to the next. `ends` are the points, in ascending order;
/// `label` writes heights and `label_x` points.
///
/// # Panics
/// If a layer lacks a height for a point.
pub fn stack(ends: &[f64], layers: &[Layer], label: &dyn Fn(f64) -> String, label_x: &dyn Fn(f64) -> String) -> String {
    assert!(layers.iter().all(|layer| layer.heights.len() == ends.len()), "a height for each point");
    let total = |i: usize| layers.iter().map(|layer| layer.heights[i]).sum::<f64>();
    let most = (0..ends.len()).map(total).fold(f64::MIN_POSITIVE, f64::max);
    let end = ends.last().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE);
    let (x, y) = (|at: f64| LEFT + WIDTH * at / end, |height: f64| 10.0 + HEIGHT * (1.0 - height / most));
    let mut svg = open(most, label);
    let mut below = vec![0.0; ends.len()];
    for Layer { name, color, heights } in layers {
        let above: Vec<f64> = below.iter().zip(heights).map(|(below, height)| below + height).collect();
        let mut path = String::new();
        // To the right along its upper edge, and back along its lower one.
        let starts = || std::iter::once(0.0).chain(ends.iter().copied());
        for ((start, end), height) in starts().zip(ends).zip(&above) {
            let _ = write!(path, "{:.1},{:.1} {:.1},{:.1} ", x(start), y(*height), x(*end), y(*height));
        }
        let back = starts().zip(ends).zip(&below).collect::<Vec<_>>().into_iter().rev();
        for ((start, end), height) in back {
            let _ = write!(path, "{:.1},{:.1} {:.1},{:.1} ", x(*end), y(*height), x(start), y(*height));
        }
        let peak = label(heights.iter().copied().fold(0.0, f64::max));
        let _ = writeln!(
            svg,
            "<polygon points=\"{}\" fill=\"{color}\"><title>{name}: at most {peak}</title></polygon>",
            path.trim_end()
        );
        below = above;
    }
    for part in 0..=4 {
        let at = end * f64::from(part) / 4.0;
        let _ = writeln!(svg, "{}", text(x(at), HEIGHT + BELOW, "middle", &label_x(at)));
    }
    svg + "</svg>\n"
}

/// Draws `values` at each of `names`, evenly spaced, in a colour of CSS, and `ideal` ones as a dashed line.
///
/// # Panics
/// If there are not as many of each.
pub fn curve(names: &[String], values: &[f64], ideal: &[f64], color: &str, label: &dyn Fn(f64) -> String) -> String {
    assert!(names.len() == values.len() && values.len() == ideal.len(), "a value for each name");
    let most = values.iter().chain(ideal).copied().fold(f64::MIN_POSITIVE, f64::max);
    let between = WIDTH / names.len().max(1) as f64;
    let at = |(i, value): (usize, &f64)| {
        (LEFT + (i as f64 + 0.5) * between, 10.0 + HEIGHT * (1.0 - (value / most).clamp(0.0, 1.0)))
    };
    let line = |values: &[f64]| {
        let points = values.iter().enumerate().map(at).map(|(x, y)| format!("{x:.1},{y:.1}"));
        points.collect::<Vec<_>>().join(" ")
    };
    let mut svg = open(most, label);
    let style = "fill=\"none\" stroke-width=\"2\"";
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" {style} stroke=\"currentColor\" stroke-dasharray=\"4 4\" opacity=\"0.4\"/>",
        line(ideal)
    );
    let _ = writeln!(svg, "<polyline points=\"{}\" {style} stroke=\"{color}\"/>", line(values));
    for ((x, y), (name, value)) in values.iter().enumerate().map(at).zip(names.iter().zip(values)) {
        let title = format!("{name}: {}", label(*value));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{color}\"><title>{title}</title></circle>"
        );
        let _ = writeln!(svg, "{}", text(x, HEIGHT + BELOW, "middle", name));
    }
    svg + "</svg>\n"
}

/// Opens a plot with a scale of three marks on its left.
fn open(most: f64, label: &dyn Fn(f64) -> String) -> String {
    let (width, height) = (LEFT + WIDTH + 40.0, HEIGHT + BELOW + 10.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    for part in [0.0, 0.5, 1.0] {
        let y = 10.0 + HEIGHT * (1.0 - part);
        let _ = writeln!(svg, "{}", text(LEFT - 8.0, y + 4.0, "end", &label(most * part)));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"currentColor\" opacity=\"0.15\"/>",
            LEFT + WIDTH
        );
    }
    svg
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"currentColor\" text-anchor=\"{anchor}\">{text}</text>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_stand_on_each_other() {
        let layer = |name: &str, heights| Layer { name: name.into(), color: "red".into(), heights };
        let layers = [layer("a", vec![1.0, 3.0]), layer("b", vec![1.0, 1.0])];
        let svg = stack(&[1.0, 2.0], &layers, &|height| format!("{height}"), &|x| format!("{x}"));
        // The scale ends at 4; b goes from 1 to 2, and from 3 to 4.
        let (left, middle, right) = (LEFT, LEFT + WIDTH / 2.0, LEFT + WIDTH);
        let y = |height: f64| 10.0 + HEIGHT * (1.0 - height / 4.0);
        let corners = [
            (left, y(2.0)),
            (middle, y(2.0)),
            (middle, y(4.0)),
            (right, y(4.0)),
            (right, y(3.0)),
            (middle, y(3.0)),
            (middle, y(1.0)),
            (left, y(1.0)),
        ];
        let points = corners.map(|(x, y)| format!("{x:.1},{y:.1}")).join(" ");
        assert!(svg.contains(&format!("points=\"{points}\"")), "{svg}");
        assert!(svg.contains("<title>a: at most 3</title>"), "{svg}");
    }
}
