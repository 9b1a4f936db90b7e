//! Plots of benchmarks: one picture for each part, with a panel for each table.

use anyhow::ensure;
use idem_report::{Contestant, Report, duration, ratio};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::bench::Results;

const WIDTH: u32 = 960;
const HEADER: u32 = 84;
/// Height of a contestant.
const ROW: u32 = 24;
/// Height of a panel's title, and of its axis.
const TITLE: u32 = 30;
const AXIS: u32 = 34;
/// Width of the names, and of the figures.
const NAMES: u32 = 300;
const FIGURES: u32 = 150;
const FONT: &str = "sans-serif";
/// Two colours that colour-blind readers can tell apart.
const FASTER: RGBColor = RGBColor(0, 114, 178);
const SLOWER: RGBColor = RGBColor(230, 159, 0);
const GREY: RGBColor = RGBColor(90, 90, 90);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the results of a part as SVG.
///
/// # Errors
///
/// There is no table, or a ratio is not a positive number.
pub(super) fn draw(results: &Results) -> anyhow::Result<String> {
    let range = range(&results.tables)?;
    let heights: Vec<_> = results
        .tables
        .iter()
        .map(|table| TITLE + ROW * table.contestants.len() as u32 + AXIS)
        .collect();
    let mut svg = String::new();
    {
        let size = (WIDTH, HEADER + heights.iter().sum::<u32>());
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (header, mut rest) = root.split_vertically(HEADER);
        draw_header(&header, results)?;
        for (table, height) in results.tables.iter().zip(heights) {
            let (panel, below) = rest.split_vertically(height);
            draw_table(&panel, table, range)?;
            rest = below;
        }
        root.present()?;
    }
    // The backend ends lines without a rule of its own; the files of the repository end in one newline.
    let lines = svg.lines().map(|line| format!("{}\n", line.trim_end()));
    Ok(lines.collect())
}

/// Lowest and highest ratio of the axis, with room beside the whiskers. All panels have the same axis.
fn range(tables: &[Report]) -> anyhow::Result<(f64, f64)> {
    const ROOM: f64 = 1.15;
    ensure!(!tables.is_empty(), "there is no table");
    let (mut low, mut high) = (0.5, 2.0);
    for table in tables {
        for it in &table.contestants {
            let ratio = it.ratio;
            let valid = [ratio.lower_quartile, ratio.median, ratio.upper_quartile];
            ensure!(
                valid.iter().all(|it| it.is_finite() && *it > 0.0),
                "{}: a ratio of `{}` is not a positive number",
                table.title,
                it.name
            );
            low = f64::min(low, ratio.lower_quartile / ROOM);
            high = f64::max(high, ratio.upper_quartile * ROOM);
        }
    }
    Ok((low, high))
}

/// Ratios with a label: 1, 2 and 5 of each power of ten, or only the powers if these are too many.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    const MOST: usize = 10;
    let of = |digits: &[f64]| {
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let all = powers.flat_map(|power| digits.iter().map(move |it| it * 10f64.powi(power)));
        all.filter(|it| (low..=high).contains(it))
            .collect::<Vec<_>>()
    };
    let ticks = of(&[1.0, 2.0, 5.0]);
    match ticks.len() {
        ..=MOST => ticks,
        _ => of(&[1.0]),
    }
}

fn draw_header(area: &Area<'_>, results: &Results) -> anyhow::Result<()> {
    let small = (FONT, 13).into_font().color(&GREY);
    let title = format!("{}: {}", results.part, results.about);
    area.draw_text(&title, &(FONT, 17).into_font().into(), (12, 10))?;
    let reading = "Time per call in ratio to the baseline of the same round, on a logarithmic axis: left of 1x is \
                   faster. Bars are medians, whiskers quartiles.";
    area.draw_text(reading, &small, (12, 36))?;
    let notes = results.note.iter().map(|note| format!("; {note}"));
    let notes: String = notes.collect();
    let taken = format!("{}, {}{notes}", results.date, results.machine.line());
    area.draw_text(&taken, &small, (12, 56))?;
    Ok(())
}

fn draw_table(area: &Area<'_>, table: &Report, (low, high): (f64, f64)) -> anyhow::Result<()> {
    let title = (FONT, 15).into_font().style(FontStyle::Bold);
    area.draw_text(&table.title, &title.into(), (12, 8))?;
    let rows = table.contestants.len();
    let (_, body) = area.split_vertically(TITLE);
    let axis = (low..high).log_scale().with_key_points(ticks((low, high)));
    let mut chart = ChartBuilder::on(&body)
        .margin_left(NAMES)
        .margin_right(FIGURES)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(axis, 0.0..rows as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|ratio| format!("{ratio}x"))
        .x_label_style((FONT, 12).into_font().color(&GREY))
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .draw()?;
    for (number, it) in table.contestants.iter().enumerate() {
        let middle = (rows - number) as f64 - 0.5;
        let color = if it.ratio.median < 1.0 {
            FASTER
        } else {
            SLOWER
        };
        let bar = [(1.0, middle - 0.32), (it.ratio.median, middle + 0.32)];
        chart.draw_series([Rectangle::new(bar, color.filled())])?;
        let whisker = ErrorBar::new_horizontal(
            middle,
            it.ratio.lower_quartile,
            it.ratio.median,
            it.ratio.upper_quartile,
            BLACK.filled(),
            8,
        );
        chart.draw_series([whisker])?;
        let (_, y) = chart.backend_coord(&(1.0, middle));
        draw_texts(area, it, y)?;
    }
    let baseline = [(1.0, 0.0), (1.0, rows as f64)];
    chart.draw_series([PathElement::new(baseline, BLACK.stroke_width(2))])?;
    Ok(())
}

/// Draws the name on the left side, and the figures on the right side.
fn draw_texts(area: &Area<'_>, it: &Contestant, y: i32) -> anyhow::Result<()> {
    let (_, top) = area.get_base_pixel();
    let y = y - top;
    let style = |side| {
        let font = (FONT, 13).into_font().color(&BLACK);
        font.pos(Pos::new(side, VPos::Center))
    };
    let names = NAMES as i32 - 10;
    area.draw_text(&it.name, &style(HPos::Right), (names, y))?;
    let figures = (WIDTH - FIGURES) as i32 + 10;
    let text = format!("{}, {}", ratio(it.ratio.median), duration(it.nanoseconds));
    area.draw_text(&text, &style(HPos::Left), (figures, y))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use idem_report::Measured;

    fn results(tables: Vec<Report>) -> Results {
        let machine = serde_json::json!({
            "cpu": "Acme", "cores": 2, "memory_gib": 8.0, "kernel": "6.1",
            "fsync_microseconds": 120.0, "fsync_delay": null, "rustc": "rustc 1.95.0", "servers": {},
        });
        Results {
            part: "load".to_owned(),
            about: "Steady load".to_owned(),
            command: "cargo xtask bench load".to_owned(),
            date: "2026-11-24".to_owned(),
            note: Some("beside other work".to_owned()),
            machine: serde_json::from_value(machine).unwrap(),
            tables,
        }
    }

    fn measured(name: &str, times: &[f64]) -> Measured {
        Measured {
            name: name.to_owned(),
            times: times.to_vec(),
            ..Measured::default()
        }
    }

    fn tables() -> Vec<Report> {
        let by_hand = || measured("by hand", &[100.0, 101.0, 99.0]);
        let first = vec![by_hand(), measured("a < b & \"c\"", &[300.0, 120.0, 900.0])];
        let second = vec![by_hand(), measured("replay", &[0.5, 0.6, 0.4])];
        vec![
            Report::new("16 tasks", first).unwrap(),
            Report::new("64 tasks", second).unwrap(),
        ]
    }

    #[test]
    fn the_plot_of_stored_results_has_every_table_and_contestant() {
        let stored = serde_json::to_string_pretty(&results(tables())).unwrap();
        let read: Results = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, results(tables()));
        let svg = draw(&read).unwrap();
        for text in [
            "load: Steady load",
            "beside other work",
            "16 tasks",
            "64 tasks",
            "by hand",
            "a &lt; b &amp;",
            "replay",
            "quartiles",
            "100.0 ns",
        ] {
            assert!(svg.contains(text), "{text} is missing: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn bars_begin_at_the_baseline_and_end_at_the_median() {
        let svg = draw(&results(tables())).unwrap();
        let bar = |color: &str| {
            let fill = format!("fill=\"{color}\"");
            let line = svg.lines().find(|line| line.contains(&fill)).unwrap();
            let number = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
                let (value, _) = rest.split_once('"').unwrap();
                value.parse::<i32>().unwrap()
            };
            (number("x"), number("x") + number("width"))
        };
        let svg_color = |color: RGBColor| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
        let (faster, slower) = (bar(&svg_color(FASTER)), bar(&svg_color(SLOWER)));
        // A ratio of 0.005 is left of the baseline, and one of 3 is right of it.
        assert!(faster.0 >= NAMES as i32 && faster.0 < faster.1);
        assert!(faster.1 <= slower.0 && slower.0 <= slower.1);
        assert!(slower.1 < (WIDTH - FIGURES) as i32);
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let error = |tables| draw(&results(tables)).unwrap_err().to_string();
        assert_eq!(error(vec![]), "there is no table");
        for value in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            let mut wrong = tables();
            wrong[1].contestants[1].ratio.median = value;
            assert!(error(wrong).contains("`replay`"), "{value}");
        }
    }

    #[test]
    fn the_axis_has_few_labels() {
        assert_eq!(ticks((0.5, 2.0)), [0.5, 1.0, 2.0]);
        assert_eq!(ticks((0.5, 46.0)), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        let wide = ticks((1e-6, 1e6));
        assert!(wide.len() <= 13 && wide.contains(&1.0), "{wide:?}");
    }
}
