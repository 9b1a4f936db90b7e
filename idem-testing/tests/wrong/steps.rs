//! Steps whose names change.

use super::*;

async fn send(attempt: &Attempt, bank: &Provider, step: &str) -> Result<u64, Fail> {
    let key = attempt.downstream_key("bank");
    let sent = async || Ok::<_, Fail>(bank.send(key.as_str(), "charge").await?);
    attempt.step(step, sent).await
}

#[test]
fn a_step_with_a_number_of_its_own() {
    #[idempotent(key = key, ttl = "1h", name = "w.step", store = idem, attempt = attempt, skip(bank, printer))]
    async fn order(
        idem: &Idem,
        bank: &Provider,
        printer: &Provider,
        key: &str,
    ) -> Result<u64, Fail> {
        send(&attempt, bank, "charge").await?;
        let print = format!("print-{}", ticket());
        let printed = async || Ok::<_, Fail>(printer.send_without_key("print").await?);
        let label: u64 = attempt.step(&print, printed).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(label)
    }
    let (bank, printer) = (Provider::new("bank"), Provider::without_keys("printer"));
    shows(
        &check(async |idem| order(&idem, &bank, &printer, "order-1").await)
            .provider(&bank)
            .provider(&printer),
        Finding::StepNameChanges,
        &expect![[r#"
            step-name-changes: a second attempt ran a step again under another name
              the record has 3 steps, and an undisturbed call has 2
                1. call 1 begins in process A
                2. process A claims w.step: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A saves a step
                5. printer gets `print` without a key: effect 1
                6. process A saves a step
                7. the caller of call 1 leaves after poll 5: its future is dropped
                8. 31s pass, longer than the lease
                9. call 2 begins in process B
               10. process B finds the record running, but lapsed
               11. process B claims w.step: attempt 2
               12. printer gets `print` without a key: effect 2
               13. process B saves a step
               14. process B stores the result
               15. call 2 returns Ok(2)
              do:     name steps by what they do: no counters, times or random numbers that an attempt does not share
              repeat: .only("dropped after poll 5"), and 8 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#step-name-changes
        "#]],
    );
}
