//! Tasks that outlive the body, and a body that lets no other task run.

use super::*;

#[test]
fn a_mail_that_nobody_awaits() {
    #[idempotent(key = key, ttl = "1h", name = "w.spawned", store = idem, attempt = attempt, skip(mailer))]
    async fn order(idem: &Idem, mailer: &Provider, key: &str) -> Result<(), Fail> {
        let (mailer, key) = (mailer.clone(), attempt.downstream_key("mailer"));
        tokio::spawn(async move { mailer.send(key.as_str(), "confirm").await });
        Ok(())
    }
    let mailer = Provider::new("mailer");
    finds(
        &check(async |idem| order(&idem, &mailer, "order-1").await).provider(&mailer),
        Finding::TaskLeftBehind,
        &expect![[r#"
            task-left-behind: an effect happened after the call had ended, in a task that nobody awaits
              1 of 1 effects happened after the call had returned
                1. call 1 begins in process A
                2. process A claims w.spawned: attempt 1
                3. process A stores the result
                4. call 1 returns Ok(())
                5. mailer gets `confirm` with key K1: effect 1
              do:     await the task in the body, or use the outbox; a task that is left behind is lost in a crash
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#task-left-behind
        "#]],
    );
}

#[test]
fn a_task_that_outlives_its_body() {
    #[idempotent(key = key, ttl = "1h", name = "w.outlives", store = idem, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let bank = bank.clone();
        let task = tokio::spawn(async move { bank.send_without_key("charge").await });
        Ok(task.await.map_err(|_| Fail::Busy)??)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::TaskLeftBehind,
        &expect![[r#"
            task-left-behind: an effect happened after the call had ended, in a task that nobody awaits
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.outlives: attempt 1
                3. the caller of call 1 leaves after poll 1: its future is dropped
                4. 31s pass, longer than the lease
                5. bank gets `charge` without a key: effect 1
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.outlives: attempt 2
                9. bank gets `charge` without a key: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     await the task in the body, or use the outbox; a task that is left behind is lost in a crash
              repeat: .only("dropped after poll 1")
              read:   https://idem-rs.github.io/idem/findings.html#task-left-behind
        "#]],
    );
}

#[test]
fn a_body_that_blocks_its_thread() {
    #[idempotent(key = key, ttl = "1h", name = "w.blocks", store = idem, attempt = attempt, lease = "60ms", skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        std::thread::sleep(Duration::from_millis(80)); // computes
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), "charge").await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await)
            .provider(&bank)
            .max_schedules(3),
        Finding::BlocksThread,
        &expect![[r#"
            blocks-thread: a poll of the call blocked its thread longer than the lease, so nothing could renew it
              one poll took longer than the lease of 60ms, in each of two calls
                1. call 1 begins in process A
                2. process A claims w.blocks: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process B
                7. process B claims w.blocks: attempt 1
                8. bank gets `charge` with key K1: recognised, as effect 1
                9. process B stores the result
               10. call 2 returns Ok(1)
              do:     use `tokio::task::spawn_blocking` for work that does not await, or a longer lease
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#blocks-thread
        "#]],
    );
}
