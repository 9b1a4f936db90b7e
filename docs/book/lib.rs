//! Compiles the Rust code of the book, and runs the code that needs no server. `cargo xtask docs` builds the book.

/// Documents an item with a page, whose code blocks then are doc tests.
macro_rules! pages {
    ($($name:ident = $path:literal;)+) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($path)]
            mod $name {}
        )+
    };
}

pages! {
    start = "src/start.md";
    service = "src/service.md";
    existing_code = "src/existing-code.md";
    modes = "src/modes.md";
    record = "src/record.md";
    patterns = "../patterns.md";
    stores = "src/stores.md";
    tls = "src/tls.md";
    ttl = "src/ttl.md";
    axum = "src/cookbook/axum.md";
    actix = "src/cookbook/actix.md";
    lambda = "src/cookbook/lambda.md";
    queues = "src/cookbook/queues.md";
    http = "src/http.md";
    steps = "src/steps.md";
    powertools = "src/powertools.md";
    lambda_readme = "../../idem-lambda/README.md";
    recovery = "src/recovery.md";
    outbox = "src/outbox.md";
    client = "src/client.md";
    testing = "src/testing.md";
    result_types = "src/result-types.md";
    migrations = "src/migrations.md";
    pools = "src/pools.md";
    failover = "src/failover.md";
    load = "src/load.md";
    moving = "src/moving.md";
    operations = "src/operations.md";
    privacy = "src/privacy.md";
    restore = "src/restore.md";
    console = "src/console.md";
    metrics = "src/metrics.md";
}
