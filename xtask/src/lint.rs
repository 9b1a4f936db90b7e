//! `cargo xtask lint`: formatting, lints, an optimized build and documentation.

use anyhow::Context as _;
use serde_json::Value as Json;
use xshell::cmd;

use crate::run::Run;

/// Checks formatting, lints with all features and with each, an optimized build, and the documentation.
pub(crate) fn lint(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    run.step("formatting", |sh| {
        Ok(cmd!(sh, "{cargo} fmt --all --check").run()?)
    })?;
    // `cargo fmt --all` knows the packages of the workspace only.
    for outside in ["arbitrary_precision", "outside_store", "peers"] {
        let manifest = format!("tests/{outside}/Cargo.toml");
        run.step(&format!("formatting, {outside}"), |sh| {
            Ok(cmd!(sh, "{cargo} fmt --manifest-path {manifest} --check").run()?)
        })?;
    }
    run.step("clippy", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} clippy --workspace --all-targets --all-features -- -D warnings"
        )
        .run()?)
    })?;
    run.step("clippy, no features", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} clippy -p idem-client -p idem-runtime -p idem-store --no-default-features -- -D warnings"
        )
        .run()?)
    })?;
    // A step of its own: the tests' dependencies enable features that the library must compile without.
    run.step("clippy, tests without features", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} clippy -p idem-client -p idem-runtime -p idem-store --no-default-features --tests -- -D warnings"
        )
        .run()?)
    })?;
    // By itself, because it enables the default features of the runtime.
    run.step("clippy, idem-console, no features", |sh| {
        Ok(cmd!(sh, "{cargo} clippy -p idem-console --tests -- -D warnings").run()?)
    })?;
    let metadata = run.metadata()?;
    // Pairs of features with code that neither of them has without the other.
    let pairs = [
        "outbox,sqlite",
        "outbox,postgres",
        "outbox,mysql",
        "cache,redis",
        "redis,tls-rustls",
        "redis-cluster,tls-rustls",
        "redis-sentinel,tls-rustls",
    ];
    for (package, pairs) in [("idem-runtime", &pairs[..]), ("idem-console", &[][..])] {
        let single = features(&metadata, package)?;
        let pairs = pairs.iter().copied().map(String::from);
        for features in single.into_iter().chain(pairs) {
            run.step(&format!("clippy, {package}, only {features}"), |sh| {
                Ok(cmd!(
                    sh,
                    "{cargo} clippy -p {package} --no-default-features --features {features} -- -D warnings"
                )
                .run()?)
            })?;
        }
    }
    // The optimizer computes the layouts of all futures, which may be nested more deeply than the compiler allows. The
    // dependencies need not be optimized for that.
    run.step("optimized build, SQL stores", |sh| {
        let optimized = ["idem-store", "idem-runtime"]
            .map(|package| format!("--config=profile.dev.package.{package}.opt-level=3"));
        Ok(cmd!(
            sh,
            "{cargo} build -p idem-runtime --no-default-features --features sqlite,postgres,mysql,outbox {optimized...}"
        )
        .run()?)
    })?;
    run.step("documentation", |sh| {
        Ok(cmd!(sh, "{cargo} doc --workspace --all-features --no-deps")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()?)
    })
}

/// Features of a package, without `default`.
fn features(metadata: &str, package: &str) -> anyhow::Result<Vec<String>> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|it| it["name"] == package)
        .and_then(|it| it["features"].as_object())
        .map(|features| features.keys().filter(|it| *it != "default").cloned())
        .map(Iterator::collect)
        .with_context(|| format!("the workspace has no package {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_the_metadata() {
        let metadata = r#"{"packages":[{"name":"x","features":{"default":["a"],"a":[],"b":[]}}]}"#;
        assert_eq!(features(metadata, "x").unwrap(), ["a", "b"]);
        assert!(features(metadata, "y").is_err());
    }
}
