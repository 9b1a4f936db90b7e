//! A recorder of the `metrics` facade that keeps everything that it was told.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Keeps the descriptions and the values of all metrics.
///
/// A metric is named as Prometheus shows it: `name{label="value"}`, with the labels in order.
#[derive(Debug, Clone, Default)]
pub struct Recording(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    counters: BTreeMap<String, u64>,
    gauges: BTreeMap<String, f64>,
    histograms: BTreeMap<String, Vec<f64>>,
    descriptions: BTreeMap<String, (Option<Unit>, String)>,
}

impl Recording {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters that are not zero.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.contents().counters.clone()
    }

    /// Value of a counter; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.contents().counters.get(name).copied().unwrap_or(0)
    }

    /// Gauges, also those that are back at zero.
    pub fn gauges(&self) -> BTreeMap<String, f64> {
        self.contents().gauges.clone()
    }

    /// Value of a gauge. `None` if it was never set.
    pub fn gauge(&self, name: &str) -> Option<f64> {
        self.contents().gauges.get(name).copied()
    }

    /// Values of a histogram.
    pub fn histogram(&self, name: &str) -> Vec<f64> {
        let contents = self.contents();
        contents.histograms.get(name).cloned().unwrap_or_default()
    }

    /// Names of all metrics that have a value.
    pub fn names(&self) -> Vec<String> {
        let contents = self.contents();
        let (counters, gauges) = (contents.counters.keys(), contents.gauges.keys());
        let names = counters.chain(gauges).chain(contents.histograms.keys());
        names.cloned().collect()
    }

    /// Unit and help text of a metric.
    pub fn description(&self, name: &str) -> Option<(Option<Unit>, String)> {
        self.contents().descriptions.get(name).cloned()
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>, description: &SharedString) {
        let description = (unit, description.to_string());
        let mut contents = self.contents();
        let name = key.as_str().to_owned();
        contents.descriptions.insert(name, description);
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let mut labels: Vec<_> = key.labels().collect();
        labels.sort();
        let mut name = key.name().to_owned();
        for (at, label) in labels.iter().enumerate() {
            let begin = if at == 0 { '{' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(name, "{begin}{}=\"{}\"", label.key(), label.value());
        }
        if !labels.is_empty() {
            name.push('}');
        }
        Arc::new(Cell {
            recording: self.clone(),
            name,
        })
    }
}

impl Recorder for Recording {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, &description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, &description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, unit, &description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

/// One metric.
struct Cell {
    recording: Recording,
    name: String,
}

impl Cell {
    fn change_gauge(&self, change: impl FnOnce(&mut f64)) {
        let mut contents = self.recording.contents();
        change(contents.gauges.entry(self.name.clone()).or_default());
    }

    fn change_counter(&self, change: impl FnOnce(&mut u64)) {
        let mut contents = self.recording.contents();
        change(contents.counters.entry(self.name.clone()).or_default());
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.change_counter(|counter| *counter += value);
    }

    fn absolute(&self, value: u64) {
        self.change_counter(|counter| *counter = value.max(*counter));
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.change_gauge(|gauge| *gauge += value);
    }

    fn decrement(&self, value: f64) {
        self.change_gauge(|gauge| *gauge -= value);
    }

    fn set(&self, value: f64) {
        self.change_gauge(|gauge| *gauge = value);
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        let mut contents = self.recording.contents();
        let values = contents.histograms.entry(self.name.clone());
        values.or_default().push(value);
    }
}
