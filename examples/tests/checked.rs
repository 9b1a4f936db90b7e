//! The functions of the examples, of the schemes in `docs/patterns.md` and of the README's service, under crashes, races and
//! lost answers. Each program is compiled here from its own source; its checks are in its module `checked`.

#![expect(
    dead_code,
    clippy::unwrap_used,
    reason = "the programs are not started here, and a check that cannot run fails"
)]

#[path = "../src/bin/checkout.rs"]
mod checkout;
#[path = "../src/bin/custom_store.rs"]
mod custom_store;
#[path = "../src/bin/nightly_mail.rs"]
mod nightly_mail;
#[path = "../src/bin/orders.rs"]
mod orders;
#[path = "../src/bin/outbox.rs"]
mod outbox;
#[path = "../src/bin/patterns/main.rs"]
mod patterns;
#[path = "../src/bin/payments/service.rs"]
mod payments;
#[path = "checked/queue.rs"]
mod queue;
#[path = "checked/readme.rs"]
mod readme;
#[path = "../src/bin/routes.rs"]
mod routes;
#[path = "../src/bin/webhook.rs"]
mod webhook;

/// Each program and each scheme has its checks.
#[test]
fn nothing_is_left_out() {
    let folder = |name: &str| {
        let path = format!("{}/src/bin{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_dir(path)
            .unwrap()
            .map(|it| it.unwrap().path())
    };
    let programs = folder("").filter(|it| it.is_file());
    // The consumer of the queues is a module of the library, whose check is in this folder. The rotating password is about
    // connections, and its function only counts.
    let checked_elsewhere = |path: &str| path.contains("/queue_") || path.contains("/rotating_");
    let programs = programs.filter(|it| !checked_elsewhere(it.to_str().unwrap()));
    // A program, and what schemes share.
    let shared = ["main.rs", "fifty.rs", "server.rs", "checked.rs"];
    let schemes = folder("/patterns")
        .filter(|it| !shared.contains(&it.file_name().unwrap().to_str().unwrap()));
    let files: Vec<_> = programs.chain(schemes).collect();
    assert!(files.len() >= 22, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("mod checked {"), "{file:?} is not checked");
    }
}
