//! `GET /metrics`: the numbers of the process, for Prometheus.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use idem_runtime::metrics::{BATCH_BUCKETS, DURATION_BUCKETS};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Installs the recorder of the process, before the first handle is made, and returns the route that Prometheus scrapes.
pub(crate) fn route() -> anyhow::Result<Router> {
    let durations = Matcher::Suffix("_duration_seconds".to_owned());
    let batches = Matcher::Full("idem_batch_size".to_owned());
    let numbers = PrometheusBuilder::new()
        .set_buckets_for_metric(durations, DURATION_BUCKETS)?
        .set_buckets_for_metric(batches, BATCH_BUCKETS)?
        .install_recorder()?;
    // Without a scrape, the samples of histograms would accumulate.
    let upkeep = numbers.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(Router::new().route("/metrics", get(async move || numbers.render())))
}
