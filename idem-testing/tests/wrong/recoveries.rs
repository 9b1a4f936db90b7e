//! Recoveries that do not finish what a crash has left.

use super::*;

#[idempotent(key = order, ttl = "24h", name = "w.recovered", store = idem, attempt = attempt, skip(bank),
             recover_with = order)]
async fn charge(
    idem: &Idem<SqliteStore>,
    bank: &Provider,
    order: &str,
    cents: u64,
) -> Result<u64, Fail> {
    let key = attempt.downstream_key("bank");
    Ok(bank.send(key.as_str(), format!("charge {cents}")).await?)
}

/// The check of a function that is recovered by this handler.
fn recovered<'a, F>(
    bank: &'a Provider,
    handler: impl Fn(Idem<SqliteStore>, Provider, String) -> F + Copy + Send + Sync + 'static,
) -> Check<'a, Sqlite, u64, Fail>
where
    F: Future<Output = Result<u64, Fail>> + Send + 'static,
{
    check_on(Sqlite::new(""), async |idem| {
        charge(&idem, bank, "order-1", 500).await
    })
    .provider(bank)
    .recovery(move |idem| {
        let (of, bank) = (idem.clone(), bank.clone());
        Recovery::new(idem).on("w.recovered", move |order| {
            handler(of.clone(), bank.clone(), order)
        })
    })
}

#[test]
fn a_recovery_that_asks_for_another_amount() {
    let bank = Provider::new("bank");
    let half = |idem: Idem<SqliteStore>, bank: Provider, order: String| async move {
        charge(&idem, &bank, &order, 250).await
    };
    finds_on_a_database(&recovered(&bank, half), &[Finding::NotRecovered]);
}

#[test]
fn a_recovery_with_a_key_of_its_own() {
    let bank = Provider::new("bank");
    let again = |idem: Idem<SqliteStore>, bank: Provider, order: String| async move {
        charge(&idem, &bank, &format!("again-{order}"), 500).await
    };
    finds_on_a_database(&recovered(&bank, again), &[Finding::RecoveryDiffers]);
    let report = recovered(&bank, again)
        .only("killed before store call 3, and recovered")
        .report();
    let story = report.findings[0].story.join("\n");
    let told = "process A dies before its Complete reaches the store\n31s pass, longer than the lease\n\
                no client repeats call 1, and process B runs the recovery";
    assert!(story.contains(told), "{report}");
    assert!(story.contains("process B recovers the call"), "{report}");
}

#[test]
fn a_recovery_of_what_is_not_saved() {
    #[idempotent(key = order, ttl = "24h", name = "w.unsaved", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem<SqliteStore>, bank: &Provider, order: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), "charge").await?)
    }
    let bank = Provider::new("bank");
    let checked = check_on(Sqlite::new(""), async |idem| {
        charge(&idem, &bank, "order-1").await
    });
    let checked = checked.provider(&bank).recovery(|idem| {
        Recovery::new(idem).on("w.unsaved", |_: String| async { Ok::<_, Fail>(()) })
    });
    finds_on_a_database(&checked, &[Finding::NotRecovered]);
    let report = checked
        .only("killed before store call 2, and recovered")
        .report();
    assert_eq!(
        report.findings[0].detail, "the call saves no recovery input",
        "{report}"
    );
}
