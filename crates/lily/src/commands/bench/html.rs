//! A report as one page: no scripts, nothing fetched, light or dark as the reader has it.

use std::fmt::Write as _;

use super::contract::Measured;
use super::plot::{Series, svg};
use super::report::{Report, Row, versions};
use crate::commands::counted;
use crate::commands::output::bytes;

const STYLE: &str = include_str!("page.css");

/// The page refuses to load or run anything, whatever is in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const CONTRACT: &str = "Prompt token i is ((i · 2654435761) mod 2³²) mod vocabulary; greedy, batch 1; \
    one warm-up of exactly the same shape, one prefill timed to the first token, then the decode steps. \
    Medians of the rounds; every round of an engine generated the same tokens, where it tells them.";

pub(super) fn page(report: &Report) -> String {
    let heading = match &report.peer {
        Some(peer) => format!("lily beside {}: {}", peer.name, report.model),
        None => format!("lily: {}", report.model),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
        escape(&heading)
    );
    facts(&mut page, report);
    plots(&mut page, report);
    table(&mut page, report);
    let _ = writeln!(page, "<h2>How it was measured</h2>\n<p>{CONTRACT}</p>");
    if let Some(peer) = &report.peer {
        let _ = writeln!(
            page,
            "<p>For each length and round the engines took turns and swapped who goes first; \
             whoever is not measured is idle. {} was run as <code>{}</code>.</p>",
            escape(peer.name),
            escape(&peer.command.join(" "))
        );
    }
    for note in &report.notes {
        let _ = writeln!(page, "<p>Note: {}.</p>", escape(note));
    }
    page += "</main>\n</body>\n</html>\n";
    page
}

fn facts(page: &mut String, report: &Report) {
    let settings = &report.settings;
    let peer = report.peer.as_ref();
    let facts = [
        ("Date", Some(format!("{} UTC", report.date))),
        ("Machine", Some(report.machine.text())),
        ("Device", Some(report.device.clone())),
        (
            "lily",
            Some(format!(
                "{}, {} KV cache, prefill in chunks of up to {}",
                report.version, settings.kv_cache, settings.prefill_chunk
            )),
        ),
        ("Peer", peer.map(versions)),
        ("Peer's model", peer.map(|peer| peer.model.clone())),
        (
            "Figures",
            Some(format!(
                "{}, {}",
                counted(settings.rounds as u64, "round"),
                counted(settings.steps as u64, "decode step")
            )),
        ),
        ("Peak memory of lily", report.peak_memory.map(bytes)),
    ];
    *page += "<dl>\n";
    for (name, value) in facts {
        if let Some(value) = value {
            let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
        }
    }
    *page += "</dl>\n";
}

fn plots(page: &mut String, report: &Report) {
    type Rate = fn(&Measured) -> f64;
    let plots: [(&str, &str, Rate); 2] = [
        ("prefill", "Prefill", Measured::prefill_rate),
        ("decode", "Decode", Measured::decode_rate),
    ];
    for (id, name, rate) in plots {
        let points = |side: fn(&Row) -> Option<&Measured>| {
            let measured = report.rows.iter().filter_map(side);
            measured.map(|m| (m.shape.length, rate(m))).collect::<Vec<_>>()
        };
        let mut series = vec![Series { name: "lily", points: points(|row| Some(&row.lily)) }];
        if let Some(peer) = &report.peer {
            series.push(Series { name: peer.name, points: points(|row| row.peer.as_ref()) });
        }
        let who: Vec<_> = series.iter().map(|line| line.name).collect();
        let description = format!(
            "{name} speed of {} over the length of the prompt; the table holds the figures.",
            who.join(" and ")
        );
        let title = format!("{name}, tokens per second");
        let _ = writeln!(page, "<h2>{title}</h2>\n<figure>");
        *page += &svg(id, &title, &description, &series);
        *page += "</figure>\n";
    }
}

fn table(page: &mut String, report: &Report) {
    let compared = report.rows.iter().any(|row| row.equal_tokens().is_some());
    *page += "<h2>Figures</h2>\n<div class=\"wide\">\n<table>\n<caption>Tokens per second, medians";
    if let Some(peer) = &report.peer {
        let name = escape(peer.name);
        *page += "; a ratio above 1 means that lily is faster";
        if compared {
            *page += "; equal tokens counts up to the first difference";
        }
        let _ = write!(
            page,
            "</caption>\n<thead>\n<tr><th scope=\"col\" rowspan=\"2\">Prompt</th>\
             <th scope=\"colgroup\" colspan=\"3\">Prefill</th>\
             <th scope=\"colgroup\" colspan=\"3\">Decode</th>{}</tr>\n<tr>",
            if compared { "<th scope=\"col\" rowspan=\"2\">Equal tokens</th>" } else { "" }
        );
        for _ in 0..2 {
            let _ = write!(
                page,
                "<th scope=\"col\">lily</th><th scope=\"col\">{name}</th>\
                 <th scope=\"col\">Ratio</th>"
            );
        }
        *page += "</tr>\n</thead>\n<tbody>\n";
    } else {
        *page += "</caption>\n<thead>\n<tr><th scope=\"col\">Prompt</th>\
                  <th scope=\"col\">Prefill</th><th scope=\"col\">Decode</th></tr>\n</thead>\n<tbody>\n";
    }
    for row in &report.rows {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", grouped(row.length()));
        let peer = row.peer.as_ref();
        cells(page, row.lily.prefill_rate(), peer.map(Measured::prefill_rate), row.prefill_ratio());
        cells(page, row.lily.decode_rate(), peer.map(Measured::decode_rate), row.decode_ratio());
        match row.equal_tokens() {
            Some((equal, of)) => {
                let _ = write!(page, "<td>{equal} of {of}</td>");
            }
            None if compared => *page += "<td></td>",
            None => {}
        }
        *page += "</tr>\n";
    }
    *page += "</tbody>\n</table>\n</div>\n";
}

fn cells(page: &mut String, lily: f64, peer: Option<f64>, ratio: Option<f64>) {
    let _ = write!(page, "<td>{}</td>", rate(lily));
    if let (Some(peer), Some(ratio)) = (peer, ratio) {
        let _ = write!(page, "<td>{}</td><td>{ratio:.2}</td>", rate(peer));
    }
}

/// A rate with one decimal, its thousands apart.
fn rate(rate: f64) -> String {
    if !(0.0..1e15).contains(&rate) {
        return "–".to_owned();
    }
    let tenths = (rate * 10.0).round() as usize;
    format!("{}.{}", grouped(tenths / 10), tenths % 10)
}

/// A number with commas between its thousands.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = (digits.len() + 2) % 3 + 1;
    let (head, rest) = digits.split_at(first.min(digits.len()));
    let thousands = rest.as_bytes().chunks(3).map(|chunk| String::from_utf8_lossy(chunk));
    thousands.fold(head.to_owned(), |text, chunk| format!("{text},{chunk}"))
}

/// Text as HTML and SVG take it, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::contract::{Round, Shape};
    use crate::commands::bench::machine::Machine;
    use crate::commands::bench::peers::Facts;
    use crate::commands::bench::report::Settings;

    fn measured(length: usize, rates: (f64, f64), tokens: Option<Vec<u32>>) -> Measured {
        let shape = Shape { length, steps: 64 };
        let round = Round { first_token_s: length as f64 / rates.0, decode_s: 64.0 / rates.1 };
        Measured { shape, tokens, rounds: vec![round] }
    }

    /// The first three lengths of the table published for an M5 Max.
    fn report() -> Report {
        let row = |length, lily, peer, equal: u32| Row {
            lily: measured(length, lily, Some((0..65).collect())),
            peer: Some(measured(length, peer, Some((0..equal).chain(99..164 - equal).collect()))),
        };
        Report {
            model: "Qwen3.6-35B-A3B-4bit".into(),
            version: "0.1.0",
            device: "metal Apple M5 Max".into(),
            machine: Machine {
                os: "macos 26.1".into(),
                arch: "aarch64",
                processor: Some("Apple M5 Max".into()),
                memory: Some(137_438_953_472),
            },
            date: "2026-09-02 17:04".into(),
            settings: Settings { kv_cache: "f32".into(), prefill_chunk: 512, steps: 64, rounds: 2 },
            peer: Some(Facts {
                name: "mlx-lm",
                model: "Qwen3.6-35B-A3B-4bit".into(),
                command: ["python3", "-c", "<mlx_lm.py of lily>"].map(str::to_owned).into(),
                versions: vec![("mlx".into(), "0.32.2".into()), ("mlx-lm".into(), "0.31.3".into())],
                remark: "",
            }),
            notes: vec!["left out: 131072; memory holds 100000 tokens".into()],
            rows: vec![
                row(256, (2866.6, 194.7), (2536.4, 148.5), 65),
                row(512, (3859.9, 193.8), (3309.5, 149.5), 65),
                row(32_768, (3927.5, 151.1), (3963.7, 118.2), 17),
            ],
            peak_memory: None,
        }
    }

    #[test]
    fn a_comparison_is_one_page_with_two_plots_and_a_table() {
        insta::assert_snapshot!(page(&report()));
    }

    #[test]
    fn a_page_of_lily_alone_has_one_line_and_two_columns_of_figures() {
        let mut alone = report();
        alone.peer = None;
        alone.rows.iter_mut().for_each(|row| row.peer = None);
        let page = page(&alone);
        assert!(page.contains("<h1>lily: Qwen3.6-35B-A3B-4bit</h1>"), "{page}");
        assert!(page.contains("<th scope=\"row\">256</th><td>2,866.6</td><td>194.7</td></tr>"));
        assert!(!page.contains("class=\"line1\"") && !page.contains("Ratio"), "{page}");
    }

    #[test]
    fn the_table_for_terminals_and_the_json_hold_the_same_figures() {
        let report = report();
        insta::assert_snapshot!(report.table());
        let json = report.json();
        let last = &json["results"][2];
        assert_eq!((&last["prompt_tokens"], &last["equal_tokens"]), (&32_768.into(), &17.into()));
        assert!((last["decode_ratio"].as_f64().unwrap() - 151.1 / 118.2).abs() < 1e-9);
        assert_eq!(json["peer"]["versions"]["mlx"], "0.32.2");
    }

    #[test]
    fn nothing_that_comes_from_outside_is_markup() {
        let mut hostile = report();
        let evil = "<script>alert(1)</script>\"'&\u{1b}";
        hostile.model = evil.into();
        hostile.device = evil.into();
        hostile.machine.processor = Some(evil.into());
        hostile.notes = vec![evil.into()];
        let peer = hostile.peer.as_mut().unwrap();
        peer.model = evil.into();
        peer.command = vec![evil.into()];
        peer.versions = vec![(evil.into(), evil.into())];
        let page = page(&hostile);
        assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
        assert_eq!(page.matches("&lt;script&gt;").count(), 9, "{page}");
    }

    #[test]
    fn the_page_fetches_nothing_and_has_a_text_for_each_plot() {
        let page = page(&report());
        for fetching in ["http:", "https:", "src=", "href", "@import", "url("] {
            assert!(!page.contains(fetching), "{fetching}");
        }
        assert_eq!(page.matches("role=\"img\" aria-labelledby=").count(), 2);
        assert_eq!(page.matches("<desc ").count(), 2);
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, expected) in
            [(0, "0"), (12, "12"), (999, "999"), (1000, "1,000"), (131_072, "131,072")]
        {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!((rate(2866.55).as_str(), rate(f64::NAN).as_str()), ("2,866.6", "–"));
    }
}
