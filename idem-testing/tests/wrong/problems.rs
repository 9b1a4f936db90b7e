//! Checks that cannot run.

use super::*;

#[idempotent(key = key, ttl = "1h", name = "w.problem", store = idem, attempt = attempt, skip(bank))]
async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
    let key = attempt.downstream_key("bank");
    Ok(bank.send(key.as_str(), "charge").await?)
}

/// Message of the panic of an assertion.
fn message(assert: impl FnOnce()) -> String {
    let asserted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(assert));
    let Err(panic) = asserted else {
        panic!("the assertion does not fail")
    };
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn more_than_the_mode_promises() {
    let bank = Provider::new("bank");
    let checked = check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank);
    checked.assert_promised();
    expect![[r#"

        the check cannot run: the mode `rerun` promises that the body runs at least once, so an effect may be repeated; use `assert_at_least_once_with_downstream_key`, or choose `on_crash = refuse` for at most once or `tx = tx` for exactly once
    "#]].assert_eq(&message(|| checked.assert_exactly_once()));
    assert!(message(|| checked.assert_at_most_once()).contains("at least once"));
}

#[test]
fn a_check_that_counts_nothing() {
    let bank = Provider::new("bank");
    let checked = check(async |idem| charge(&idem, &bank, "order-1").await);
    expect![[r#"

        the check cannot run: it counts no effects; add `.provider(&bank)` or `.effects(|| bank.charges())`
    "#]].assert_eq(&message(|| checked.assert_promised()));
}

#[test]
fn a_closure_that_does_not_use_the_handle() {
    let checked = check(async |_| Ok::<_, Fail>(1)).effects(|| 1);
    expect![[r#"

        the check cannot run: the closure made no idempotent call through the handle that it got (it returns Ok(1)); pass the handle to the function
    "#]].assert_eq(&message(|| checked.assert_promised()));
}

#[test]
fn a_function_that_panics_or_never_ends() {
    let panics = check(async |_| -> Result<(), Fail> { panic!("no bank") }).effects(|| 1);
    let text = message(|| panics.assert_promised());
    assert!(text.contains("the function panics: no bank"), "{text}");
    let hangs = check(async |_| std::future::pending::<Result<(), Fail>>().await).effects(|| 1);
    let text = message(|| hangs.assert_promised());
    assert!(text.contains("never ends"), "{text}");
}

#[test]
fn a_call_that_fails_before_its_effect() {
    let bank = Provider::new("bank");
    let pay = async |idem: Idem| {
        let call = idem_runtime::Call::new("w.fails", "order-1", "pay", Duration::from_secs(60));
        idem.run(call, async || Err::<(), _>(Fail::Exists)).await
    };
    let checked = check(pay).provider(&bank);
    expect![[r#"

        the check cannot run: the undisturbed call returns Err(Exists) and has no effect, so no schedule could find a mistake; check a call that succeeds, or declare the error with `.final_error(..)` or `.transient_error(..)`
    "#]].assert_eq(&message(|| checked.assert_promised()));
    let declared = check(pay).provider(&bank);
    declared
        .transient_error(|error| matches!(error, Fail::Exists))
        .assert_promised();
}

#[tokio::test]
async fn a_check_inside_of_a_runtime() {
    let checked = check(async |_| Ok::<_, Fail>(1)).effects(|| 1);
    let text = message(|| checked.assert_promised());
    assert!(text.contains("plain `#[test]`"), "{text}");
}

#[test]
fn a_schedule_that_does_not_exist() {
    let text = message(|| drop(check(async |_| Ok::<_, Fail>(1)).only("killed after lunch")));
    assert!(text.contains("names no schedule"), "{text}");
}

#[test]
fn a_fake_that_remembers_keys() {
    let keys = RefCell::new(HashSet::new());
    let pay = async |idem: Idem| {
        let call = idem_runtime::Call::new("w.fake", "order-1", "charge", Duration::from_secs(60));
        let body = async |attempt: Attempt| {
            let key = attempt.downstream_key("bank");
            keys.borrow_mut().insert(key.as_str().to_owned());
            Ok::<_, Fail>(1)
        };
        let options = idem_runtime::advanced::RunOptions::new();
        idem.run_with(call, options, body).await
    };
    let checked = check(pay).effects(|| keys.borrow().len() as u64);
    let text = message(|| checked.assert_promised());
    assert!(text.contains("remembers earlier schedules"), "{text}");
    let checked = check(pay).effects(|| keys.borrow().len() as u64);
    checked
        .before_each(|| keys.borrow_mut().clear())
        .assert_promised();
}

#[test]
fn a_stock_that_ends() {
    let stock = Cell::new(5);
    let take = async |idem: Idem| {
        let call = idem_runtime::Call::new("w.stock", "order-1", "take", Duration::from_secs(60));
        let body = async || {
            let left = stock.get();
            stock.set(left.max(1) - 1);
            if left == 0 { Err(Fail::Exists) } else { Ok(()) }
        };
        idem.run(call, body).await
    };
    let checked = check(take).effects(|| 0);
    let text = message(|| checked.assert_promised());
    assert!(text.contains("remembers earlier schedules"), "{text}");
}
