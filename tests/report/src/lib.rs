//! Results of benchmarks. A benchmark prints them as a table, and passes them to `cargo xtask bench` as a line of JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

/// Environment variable that names the file to which a benchmark appends its reports.
pub const VARIABLE: &str = "IDEM_BENCH_REPORT";

/// Results of contestants that were measured in the same rounds. The first one is the baseline of the ratios.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Title of the table.
    pub title: String,
    /// Results, the baseline first.
    pub contestants: Vec<Contestant>,
}

/// Results of one contestant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contestant {
    /// Name in the table.
    pub name: String,
    /// Number of rounds.
    pub rounds: usize,
    /// Median time of a call in nanoseconds.
    pub nanoseconds: f64,
    /// Time of a call, divided by the baseline's time in the same round.
    pub ratio: Spread,
    /// Further figures by name, such as commits per call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, f64>,
    /// Limits that the contestant should keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Distribution of the figures of all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Lowest figure.
    pub lowest: f64,
    /// Figure that a quarter of the rounds do not exceed.
    pub lower_quartile: f64,
    /// Figure in the middle.
    pub median: f64,
    /// Figure that three quarters of the rounds do not exceed.
    pub upper_quartile: f64,
    /// Highest figure.
    pub highest: f64,
}

/// Hard limit and target of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    unit: Unit,
    bound: f64,
    aim: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Ratio,
    Nanoseconds,
}

/// Measurements of one contestant.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Name in the table.
    pub name: String,
    /// Nanoseconds per call, by round.
    pub times: Vec<f64>,
    /// Further figures by name.
    pub counters: BTreeMap<String, f64>,
    /// Limits that the contestant should keep.
    pub limits: Option<Limits>,
}

impl Limits {
    /// Limits of the ratio to the baseline.
    pub const fn ratio(bound: f64, aim: f64) -> Self {
        Self {
            unit: Unit::Ratio,
            bound,
            aim,
        }
    }

    /// Limits of the time itself, which depend on the machine.
    pub const fn nanoseconds(bound: f64, aim: f64) -> Self {
        Self {
            unit: Unit::Nanoseconds,
            bound,
            aim,
        }
    }

    fn print(&self, ratio: f64, nanoseconds: f64) -> String {
        let (measured, print): (_, fn(f64) -> String) = match self.unit {
            Unit::Ratio => (ratio, |limit| format!("{limit:.2}x")),
            Unit::Nanoseconds => (nanoseconds, duration),
        };
        let verdict = if measured <= self.aim {
            "aim reached"
        } else if measured <= self.bound {
            "within bound"
        } else {
            "OVER BOUND"
        };
        format!(
            "{:>10} {:>10}  {verdict}",
            print(self.bound),
            print(self.aim)
        )
    }
}

impl Spread {
    /// # Errors
    ///
    /// There is no figure, or one is not a positive number.
    fn of(mut figures: Vec<f64>) -> anyhow::Result<Self> {
        ensure!(!figures.is_empty(), "no round was measured");
        for figure in &figures {
            ensure!(
                figure.is_finite() && *figure > 0.0,
                "{figure} is not a positive number"
            );
        }
        figures.sort_by(f64::total_cmp);
        let at = |quarters: usize| rounded(figures[(figures.len() - 1) * quarters / 4]);
        Ok(Self {
            lowest: at(0),
            lower_quartile: at(1),
            median: rounded(figures[figures.len() / 2]),
            upper_quartile: rounded(figures[figures.len() - 1 - (figures.len() - 1) / 4]),
            highest: at(4),
        })
    }
}

impl Report {
    /// Computes medians and ratios. The first contestant is the baseline.
    ///
    /// # Errors
    ///
    /// There is no contestant, the contestants have different numbers of rounds, or a time is not a positive number.
    pub fn new(title: &str, measured: Vec<Measured>) -> anyhow::Result<Self> {
        let Some(base) = measured.first().map(|it| it.times.clone()) else {
            bail!("{title}: no contestant was measured");
        };
        let contestants = measured.into_iter().map(|it| {
            let about = format!("{title}: {}", it.name);
            ensure!(
                it.times.len() == base.len(),
                "{about}: {} rounds, but the baseline has {}",
                it.times.len(),
                base.len()
            );
            let ratios = it.times.iter().zip(&base).map(|(own, base)| own / base);
            let ratio = Spread::of(ratios.collect()).with_context(|| about.clone())?;
            let counters = it.counters.into_iter();
            Ok(Contestant {
                rounds: it.times.len(),
                nanoseconds: Spread::of(it.times).context(about)?.median,
                ratio,
                name: it.name,
                counters: counters
                    .map(|(name, value)| (name, rounded(value)))
                    .collect(),
                limits: it.limits,
            })
        });
        Ok(Self {
            title: title.to_owned(),
            contestants: contestants.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Prints the table, and appends the report to the file that [`VARIABLE`] names, if it is set.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn publish(&self) -> anyhow::Result<()> {
        println!("\n{}", self.table());
        match std::env::var_os(VARIABLE) {
            Some(file) => self.append(Path::new(&file)),
            None => Ok(()),
        }
    }

    /// Appends the report to a file, as one line of JSON.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&self, file: &Path) -> anyhow::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        File::options()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .with_context(|| format!("cannot append a report to {}", file.display()))
    }

    /// Reads the reports in a file, one in each line.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line is not a report.
    pub fn read(file: &Path) -> anyhow::Result<Vec<Self>> {
        let about = || format!("cannot read the reports in {}", file.display());
        let text = std::fs::read_to_string(file).with_context(about)?;
        let lines = (1..).zip(text.lines());
        lines
            .map(|(number, line)| {
                serde_json::from_str(line).with_context(|| format!("line {number} is no report"))
            })
            .collect::<anyhow::Result<_>>()
            .with_context(about)
    }

    /// The report as text, without a final newline.
    pub fn table(&self) -> String {
        let columns: Vec<_> = self.columns();
        let mut table = format!(
            "{}\n  {:<44} {:>10} {:>8} {:>17}",
            self.title, "", "time", "ratio", "quartiles"
        );
        for column in &columns {
            let _ = write!(table, "  {column:>8}");
        }
        if self.contestants.iter().any(|it| it.limits.is_some()) {
            let _ = write!(table, " {:>10} {:>10}", "bound", "aim");
        }
        for it in &self.contestants {
            let quartiles = format!(
                "{} to {}",
                ratio(it.ratio.lower_quartile),
                ratio(it.ratio.upper_quartile)
            );
            let _ = write!(
                table,
                "\n  {:<44} {:>10} {:>8} {quartiles:>17}",
                it.name,
                duration(it.nanoseconds),
                ratio(it.ratio.median)
            );
            for column in &columns {
                let value = it.counters.get(*column).map(|value| figure(*value));
                let width = column.len().max(8);
                let _ = write!(table, "  {:>width$}", value.unwrap_or_default());
            }
            if let Some(limits) = it.limits {
                let _ = write!(table, " {}", limits.print(it.ratio.median, it.nanoseconds));
            }
        }
        table
    }

    /// Names of the counters that any contestant has.
    fn columns(&self) -> Vec<&str> {
        let names = self.contestants.iter().flat_map(|it| it.counters.keys());
        let mut names: Vec<_> = names.map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Keeps four significant digits: more of them are noise, and would change in every line of a committed report.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    // Dividing by a power of ten gives the shortest decimal; multiplying by its inverse does not.
    match digits {
        0.. => (value * 10f64.powi(digits)).round() / 10f64.powi(digits),
        _ => (value / 10f64.powi(-digits)).round() * 10f64.powi(-digits),
    }
}

/// A figure for people: two decimals if it is small, none if it is large.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0..100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// A ratio for people: two decimals, or three if it is small.
pub fn ratio(value: f64) -> String {
    match value {
        0.0..0.095 => format!("{value:.3}x"),
        _ => format!("{value:.2}x"),
    }
}

/// A time for people.
pub fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        0.0..1e3 => format!("{nanoseconds:.1} ns"),
        1e3..1e6 => format!("{:.2} µs", nanoseconds / 1e3),
        1e6..1e9 => format!("{:.2} ms", nanoseconds / 1e6),
        _ => format!("{:.2} s", nanoseconds / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, times: &[f64]) -> Measured {
        Measured {
            name: name.to_owned(),
            times: times.to_vec(),
            ..Measured::default()
        }
    }

    fn report() -> Report {
        let mut annotated = measured("annotated", &[220.0, 240.0, 180.0, 400.0, 1.0 / 3.0]);
        annotated.counters = BTreeMap::from([("commits".to_owned(), 1.0 / 3.0)]);
        annotated.limits = Some(Limits::ratio(2.0, 1.05));
        let base = measured("by hand", &[100.0, 120.0, 90.0, 100.0, 1.0]);
        Report::new("a first call", vec![base, annotated]).unwrap()
    }

    #[test]
    fn a_ratio_belongs_to_one_round() {
        let report = report();
        let [base, annotated] = &report.contestants[..] else {
            panic!("two contestants, got {report:?}");
        };
        assert_eq!(base.ratio.lowest, base.ratio.highest);
        assert_eq!(base.nanoseconds, 100.0);
        let expected = Spread {
            lowest: 0.3333,
            lower_quartile: 2.0,
            median: 2.0,
            upper_quartile: 2.2,
            highest: 4.0,
        };
        assert_eq!(annotated.ratio, expected);
        assert_eq!(annotated.rounds, 5);
        assert_eq!(annotated.counters["commits"], 0.3333);
    }

    #[test]
    fn quartiles_of_few_rounds_are_symmetric() {
        let four = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((four.lower_quartile, four.upper_quartile), (1.0, 4.0));
        let one = Spread::of(vec![7.0]).unwrap();
        assert_eq!((one.lower_quartile, one.upper_quartile), (7.0, 7.0));
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let wrong = |measured: Vec<Measured>| {
            let error = Report::new("title", measured).unwrap_err();
            format!("{error:#}")
        };
        assert!(wrong(vec![]).contains("no contestant"));
        assert!(wrong(vec![measured("a", &[])]).contains("no round"));
        for time in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = wrong(vec![measured("a", &[1.0]), measured("b", &[time])]);
            assert!(error.contains("title: b"), "{error}");
        }
        let rounds = wrong(vec![measured("a", &[1.0]), measured("b", &[1.0, 2.0])]);
        assert!(rounds.contains("2 rounds"), "{rounds}");
    }

    #[test]
    fn lines_of_a_file_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reports");
        let other = Report::new("other", vec![measured("µ \"x\"\n", &[1e9 / 7.0])]).unwrap();
        report().append(&file).unwrap();
        other.append(&file).unwrap();
        assert_eq!(Report::read(&file).unwrap(), [report(), other]);

        std::fs::write(&file, "{}\n").unwrap();
        let error = format!("{:#}", Report::read(&file).unwrap_err());
        assert!(error.contains("line 1 is no report"), "{error}");
        assert!(Report::read(&folder.path().join("missing")).is_err());
        assert!(report().append(folder.path()).is_err());
    }

    #[test]
    fn the_table_has_every_figure() {
        let table = report().table();
        for text in [
            "a first call",
            "by hand",
            "100.0 ns",
            "2.00x to 2.20x",
            "commits",
            "0.33",
            "bound",
            "within bound",
        ] {
            assert!(table.contains(text), "{text}: {table}");
        }
        let limits = Limits::nanoseconds(3000.0, 1000.0);
        assert!(limits.print(9.0, 999.0).ends_with("aim reached"));
        assert!(limits.print(0.1, 3001.0).ends_with("OVER BOUND"));
        assert!(limits.print(1.0, 2.0).contains("3.00 µs"));
        assert_eq!(duration(1.5e6), "1.50 ms");
        assert_eq!(duration(2e9), "2.00 s");
        assert_eq!(
            [ratio(0.0123), ratio(0.1), ratio(12.5)],
            ["0.012x", "0.10x", "12.50x"]
        );
    }

    #[test]
    fn four_digits_are_kept() {
        for (value, expected) in [(123456.0, 123500.0), (0.000123456, 0.0001235), (0.0, 0.0)] {
            assert_eq!(rounded(value), expected);
        }
        assert_eq!(format!("{}", rounded(0.123456)), "0.1235");
    }
}
