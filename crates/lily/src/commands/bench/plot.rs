//! A line plot as SVG: rates over prompt lengths, the lengths on a logarithmic axis.

use std::fmt::Write as _;

use super::html::{escape, grouped};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// Room that the label of a length needs.
const LABEL: f64 = 52.0;

/// One line; lines differ by colour, by dashes and by the form of their points.
pub(super) struct Series<'r> {
    pub(super) name: &'r str,
    /// Prompt length and tokens per second.
    pub(super) points: Vec<(usize, f64)>,
}

/// The plot; `id` tells it from others on the page.
pub(super) fn svg(id: &str, title: &str, description: &str, series: &[Series<'_>]) -> String {
    let axes = Axes::of(series);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
         <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-desc\">{}</desc>\n",
        escape(title),
        escape(description)
    );
    axes.draw(&mut svg);
    for (number, line) in series.iter().enumerate() {
        draw(&mut svg, &axes, line, number);
    }
    svg += "</svg>\n";
    svg
}

struct Axes {
    lengths: Vec<usize>,
    /// Largest rate of the axis, and the distance of its lines.
    top: f64,
    step: f64,
}

impl Axes {
    fn of(series: &[Series<'_>]) -> Self {
        let points = || series.iter().flat_map(|line| &line.points);
        let mut lengths: Vec<usize> = points().map(|&(length, _)| length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let finite = points().map(|&(_, rate)| rate).filter(|rate| rate.is_finite());
        let most = finite.fold(0.0, f64::max);
        let step = round_step(most / 5.0);
        let top = (most / step).ceil().max(1.0) * step;
        Axes { lengths, top, step }
    }

    fn x(&self, length: usize) -> f64 {
        let log = |length: usize| (length.max(1) as f64).log2();
        let (Some(&first), Some(&last)) = (self.lengths.first(), self.lengths.last()) else {
            return LEFT;
        };
        let width = WIDTH - LEFT - RIGHT;
        if first == last {
            return LEFT + width / 2.0;
        }
        LEFT + 20.0 + (width - 40.0) * (log(length) - log(first)) / (log(last) - log(first))
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / self.top
    }

    fn draw(&self, svg: &mut String) {
        let mut line = 0.0;
        while line <= self.top * 1.001 {
            let y = self.y(line);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{:.1}\"/>\
                 <text class=\"rate\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                tick(line, self.step)
            );
            line += self.step;
        }
        let mut free = f64::NEG_INFINITY;
        for &length in &self.lengths {
            let x = self.x(length);
            let (bottom, under) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM + 18.0);
            let _ = write!(svg, "<path class=\"grid\" d=\"M{x:.1} {bottom:.1}v5\"/>");
            if x >= free {
                let length = grouped(length);
                let _ = write!(
                    svg,
                    "<text class=\"length\" x=\"{x:.1}\" y=\"{under:.1}\">{length}</text>"
                );
                free = x + LABEL;
            }
            svg.push('\n');
        }
        let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0);
        let _ = writeln!(
            svg,
            "<text class=\"length\" x=\"{x:.1}\" y=\"{y:.1}\">prompt tokens (logarithmic)</text>"
        );
    }
}

fn draw(svg: &mut String, axes: &Axes, line: &Series<'_>, number: usize) {
    let mut points = line.points.clone();
    points.retain(|(_, rate)| rate.is_finite());
    points.sort_by_key(|&(length, _)| length);
    let places = points.iter().map(|&(length, rate)| (axes.x(length), axes.y(rate)));
    let path: Vec<_> = places.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let _ = writeln!(svg, "<g class=\"line{number}\">");
    if !path.is_empty() {
        let _ = writeln!(svg, "<path class=\"line\" d=\"M{}\"/>", path.join("L"));
    }
    for (length, rate) in points {
        let told = format!("{}, {}: {rate:.1} tokens/s", line.name, grouped(length));
        mark(svg, number, axes.x(length), axes.y(rate), &told);
    }
    // The legend, above the plot.
    let (x, y) = (LEFT + 20.0 + 170.0 * number as f64, 18.0);
    let _ = writeln!(svg, "<path class=\"line\" d=\"M{x:.1} {y:.1}h28\"/>");
    mark(svg, number, x + 14.0, y, line.name);
    let _ = writeln!(
        svg,
        "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n</g>",
        x + 36.0,
        y + 4.0,
        escape(line.name)
    );
}

/// A circle for the first line, a square for others.
fn mark(svg: &mut String, number: usize, x: f64, y: f64, told: &str) {
    let told = escape(told);
    let _ = match number {
        0 => writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{told}</title></circle>"
        ),
        _ => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\"><title>{told}</title></rect>",
            x - 4.0,
            y - 4.0
        ),
    };
}

/// The least of 1, 2, 2.5 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|&step| step >= least * 0.999).unwrap_or(power * 10.0)
}

/// A rate at the axis, with as many decimals as the steps need.
fn tick(rate: f64, step: f64) -> String {
    match step {
        step if step >= 10.0 => grouped(rate.round() as usize),
        step if step >= 1.0 => format!("{rate:.1}"),
        _ => format!("{rate:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        for (least, step) in [(973.0, 1000.0), (39.0, 50.0), (0.03, 0.05), (21.0, 25.0), (0.0, 1.0)]
        {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}: {}", round_step(least));
        }
        assert_eq!(round_step(f64::INFINITY), 1.0);
    }

    #[test]
    fn one_point_and_no_point_can_be_drawn() {
        for points in [vec![], vec![(256, 10.0)], vec![(256, f64::NAN), (512, 0.0)]] {
            let svg = svg("p", "t", "d", &[Series { name: "lily", points }]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let line = Series { name: "<b>", points: vec![(1, 1.0)] };
        let svg = svg("p", "<i>", "a & b", &[line]);
        assert!(!svg.contains("<b>") && !svg.contains("<i>") && svg.contains("a &amp; b"), "{svg}");
    }
}
