//! Cases on purging: records to delete, records to keep, and concurrent changes.

use std::time::Duration;

use tokio::time::Instant;

use super::kit::*;
use crate::record::{OnCrash, Owner, RecordState, Timestamp};
use crate::store::{ClaimRequest, FencedWrite, Purged};

fn brief(on_crash: OnCrash) -> ClaimRequest {
    ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        on_crash,
        ..fresh()
    }
}

/// Record that would have expired by now, counted from its claim, but whose lease was renewed for a long time before
/// that.
async fn renewed_and_due(
    store: &Subject,
    on_crash: OnCrash,
    retention: Duration,
) -> Result<(Owner, ClaimRequest), String> {
    for _ in 0..40 {
        let claim = ClaimRequest {
            lease: Duration::from_millis(200),
            retention,
            on_crash,
            ..fresh()
        };
        let granted = store.granted(&claim).await?;
        let owner = owned_by(&claim, &granted);
        if store.renew(&owner, LONG).await? == FencedWrite::Fenced {
            // The store was so slow that the record has expired. The next try may be quicker.
            store.absent(&claim.id).await?;
            continue;
        }
        let due = granted.first_claimed_at.after(claim.lease).after(retention);
        let due = due.after(store.slack());
        store.passes(due, &claim.id).await?;
        return Ok((owner, claim));
    }
    Err(undecided(
        "no lease was renewed before it was over, because the store or the machine is too slow",
    ))
}

/// Purges until nothing is due, and adds up the results.
async fn purge_all(store: &Subject, limit: u32) -> Result<Purged, String> {
    purge_all_as_of(store, limit, Timestamp::MAX).await
}

async fn purge_all_as_of(store: &Subject, limit: u32, as_of: Timestamp) -> Result<Purged, String> {
    let mut purges = Purges::new();
    loop {
        let purged = store.purge_as_of(limit, as_of).await?;
        if purges.is_last(&purged)? {
            return Ok(purges.total);
        }
    }
}

/// Purges until one says that nothing more is due.
struct Purges {
    begun: Instant,
    total: Purged,
}

impl Purges {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            total: Purged::default(),
        }
    }

    /// Adds a purge. Returns true if it was the last one.
    fn is_last(&mut self, purged: &Purged) -> Result<bool, String> {
        let total = &mut self.total;
        total.add(purged);
        let is_over = purged.more && self.begun.elapsed() >= DEADLINE;
        match total.changed() == 0 {
            _ if !is_over => Ok(!purged.more),
            true => Err("it always says that there is more, and purges nothing".to_owned()),
            false => Err(undecided(&format!(
                "purging did not come to an end in {DEADLINE:?}, because many records are due: {total:?}"
            ))),
        }
    }
}

pub(super) async fn purge_removes_what_expired(store: Subject) -> CaseResult {
    let mut total = Purged::default();
    // Other purges may run on the same store, so a count that is too low is measured again.
    for _ in 0..40 {
        let completed = brief(OnCrash::Refuse);
        let released = brief(OnCrash::Reconcile);
        let abandoned = brief(OnCrash::Rerun);
        let owner = store.own(&completed).await?;
        store.complete(&owner, &outcome()).await?;
        let owner = store.own(&released).await?;
        store.release(&owner).await?;
        store.own(&abandoned).await?;
        for claim in [&completed, &released, &abandoned] {
            store.absent(&claim.id).await?;
        }
        if store.store().expires_by_itself() {
            return Ok(());
        }

        let mut counted = Purged::default();
        let begun = Instant::now();
        while counted.removed < 3 && begun.elapsed() < Duration::from_millis(500) {
            let purged = purge_all(&store, 100).await?;
            counted.removed += purged.removed;
            counted.abandoned += purged.abandoned;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if counted.removed >= 3 && counted.abandoned >= 1 && counted.abandoned < counted.removed {
            return Ok(());
        }
        total.removed += counted.removed;
        total.abandoned += counted.abandoned;
    }
    match 0 < total.abandoned && total.abandoned < total.removed {
        true => Err(undecided("other purges came first")),
        false => Err(format!(
            "40 times 3 expired records, 1 of 3 abandoned, were counted as {total:?}"
        )),
    }
}

pub(super) async fn purge_keeps_what_has_not_expired(store: Subject) -> CaseResult {
    let running = ClaimRequest {
        retention: SHORT,
        ..fresh()
    };
    store.own(&running).await?;
    let lapsed = store.silent(OnCrash::Rerun).await?;
    let released = fresh();
    let owner = store.own(&released).await?;
    store.release(&owner).await?;
    let completed = fresh();
    let owner = store.own(&completed).await?;
    store.complete(&owner, &outcome()).await?;
    let interrupted = ClaimRequest {
        on_crash: OnCrash::Refuse,
        retention: Duration::ZERO,
        ..fresh()
    };
    let owner = store.own(&interrupted).await?;
    store.interrupt(&owner).await?;

    let mut before = Vec::new();
    for id in [
        running.id,
        lapsed.claim.id,
        released.id,
        completed.id,
        interrupted.id,
    ] {
        before.push(store.record(&id).await?);
    }
    purge_all(&store, 50).await?;
    for record in before {
        store.unchanged(&record).await?;
    }
    Ok(())
}

pub(super) async fn purge_looks_at_the_lease_again(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let (owner, _) = renewed_and_due(&store, on_crash, SHORT).await?;
        let renewed = store.record(&owner.id).await?;
        purge_all(&store, 100).await?;
        store.unchanged(&renewed).await?;
    }
    Ok(())
}

pub(super) async fn purge_against_renew(store: Subject) -> CaseResult {
    let begun = Instant::now();
    for round in 0..20 {
        // On a slow store, fewer rounds will do.
        if begun.elapsed() > Duration::from_secs(20) {
            break;
        }
        let claim = ClaimRequest {
            lease: Duration::from_millis(5),
            retention: Duration::ZERO,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        let answers = concurrently(2, |number| {
            let store = store.clone();
            async move {
                Ok(if number == 0 {
                    Some(store.renew(&owner, LONG).await?)
                } else {
                    for _ in 0..8 {
                        store.purge(100).await?;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    None
                })
            }
        })
        .await?;
        let renewed = answers.contains(&Some(FencedWrite::Applied));
        let record = store.get(&claim.id).await?;
        ensure!(
            renewed == record.is_some(),
            "the renewal was {}, and there is {record:?}",
            if renewed { "acknowledged" } else { "refused" }
        );
    }
    Ok(())
}

pub(super) async fn purge_counts_retention_from_the_outcome(store: Subject) -> CaseResult {
    // The longer the retention, the slower a purge may be.
    for seconds in [1, 2, 4, 8, 16] {
        let retention = Duration::from_secs(seconds);
        let (owner, claim) = renewed_and_due(&store, OnCrash::Rerun, retention).await?;
        let begun = Instant::now();
        store.complete(&owner, &outcome()).await?;
        purge_all(&store, 100).await?;
        let record = store.get(&claim.id).await?;
        if begun.elapsed() < retention / 2 {
            ensure!(
                record.is_some(),
                "it was gone {:?} after its outcome, with a retention of {retention:?}",
                begun.elapsed()
            );
            return Ok(());
        }
    }
    Err(undecided(
        "purging took longer than eight seconds, because the store or the machine is too slow",
    ))
}

pub(super) async fn purge_interrupts_what_is_unknown(store: Subject) -> CaseResult {
    let mut counted = 0;
    for _ in 0..40 {
        for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
            let claim = brief(on_crash);
            let owner = store.own(&claim).await?;
            let mut patience = Patience::new("it was never marked INTERRUPTED");
            let record = loop {
                counted += purge_all(&store, 100).await?.interrupted;
                let record = store.record(&claim.id).await?;
                if record.state == RecordState::Interrupted {
                    break record;
                }
                patience.wait().await?;
            };
            ensure!(
                record.claim_id == Some(owner.claim_id)
                    && record.fencing_token == owner.fencing_token
                    && record.attempt == 1
                    && record.lease_until.after(record.retention)
                        <= record.read_at.after(store.slack()),
                "marked as {record:?}"
            );
            purge_all(&store, 100).await?;
            store.unchanged(&record).await?;
            let done = store.complete(&owner, &outcome()).await?;
            // A slow store may answer after the expiry. Without the completion, the record would not expire.
            ensure!(
                done == FencedWrite::Applied || store.get(&claim.id).await?.is_none(),
                "its owner was refused afterwards"
            );
        }
        if counted > 0 {
            return Ok(());
        }
    }
    Err("no purge counted a record that it marked".to_owned())
}

pub(super) async fn purge_finds_what_was_resolved_late(store: Subject) -> CaseResult {
    let mut removed = 0;
    for _ in 0..40 {
        let claim = brief(OnCrash::Refuse);
        let owner = store.own(&claim).await?;
        let mut patience = Patience::new("it was never marked INTERRUPTED");
        while store.record(&claim.id).await?.state != RecordState::Interrupted {
            patience.wait().await?;
            purge_all(&store, 100).await?;
        }
        store.complete(&owner, &outcome()).await?;
        store.absent(&claim.id).await?;
        if store.store().expires_by_itself() {
            return Ok(());
        }
        removed += purge_all(&store, 100).await?.removed;
        if removed > 0 {
            return Ok(());
        }
    }
    Err("no purge removed such a record".to_owned())
}

pub(super) async fn purge_as_of_an_earlier_time(store: Subject) -> CaseResult {
    let begin = Timestamp::from_micros(0);
    let mut removed = 0;
    // Other purges may run on the same store and come first. So these purges do not wait until all of the records are
    // due: between two of them there is little time for another.
    for _ in 0..40 {
        let mut last = None;
        for number in 1..=8 {
            let claim = ClaimRequest {
                lease: SHORT,
                retention: number * SHORT,
                ..fresh()
            };
            store.own(&claim).await?;
            last = Some(claim.id);
        }
        let mut patience = Patience::new("its time never came");
        while let Some(id) = last {
            if store.get(&id).await?.is_none() {
                last = None;
            }
            let purged = store.purge_as_of(100, begin).await?;
            ensure!(purged.changed() == 0, "a purge as of 1970 did {purged:?}");
            if last.is_none() && store.store().expires_by_itself() {
                return Ok(());
            }
            let now = store.now().await?;
            removed += purge_all_as_of(&store, 100, now).await?.removed;
            if removed >= 3 {
                return Ok(());
            }
            patience.wait().await?;
        }
    }
    Err(match removed {
        0 => "no purge as of the store's time removed what had expired".to_owned(),
        _ => undecided("other purges came first"),
    })
}

/// Counts by the clock of the caller. See the case on leases.
pub(super) async fn retention_is_not_cut_short(store: Subject) -> CaseResult {
    const RETENTION: Duration = Duration::from_millis(700);
    concurrently(4, |round| {
        let store = store.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(250) * round as u32).await;
            let claim = ClaimRequest {
                retention: RETENTION,
                ..fresh()
            };
            let owner = store.own(&claim).await?;
            let sent = Instant::now();
            match round % 2 {
                0 => store.complete(&owner, &outcome()).await?,
                _ => store.release(&owner).await?,
            };
            store.absent(&claim.id).await?;
            let lasted = sent.elapsed();
            ensure!(
                lasted >= shortened(RETENTION),
                "with a retention of {RETENTION:?} it was gone {lasted:?} after its end"
            );
            Ok(())
        }
    })
    .await?;
    Ok(())
}

/// A store may have several clocks.
const SKEW: Duration = Duration::from_secs(1);

pub(super) async fn now_is_the_time_of_reads(store: Subject) -> CaseResult {
    let claim = fresh();
    store.own(&claim).await?;
    let before = store.record(&claim.id).await?.read_at;
    let now = store.now().await?;
    let after = store.record(&claim.id).await?.read_at;
    ensure!(
        before <= now.after(SKEW).after(store.slack())
            && now <= after.after(SKEW).after(store.slack()),
        "between reads at {before:?} and {after:?}, the time was {now:?}"
    );
    Ok(())
}

pub(super) async fn purge_is_bounded(store: Subject) -> CaseResult {
    let mut told = false;
    // Purges of other cases, or of other users of the store, may come first.
    for _ in 0..200 {
        let mut claims = Vec::new();
        for number in 0..12 {
            let on_crash = match number % 3 {
                0 => OnCrash::Refuse,
                _ if store.store().expires_by_itself() => OnCrash::Refuse,
                _ => OnCrash::Rerun,
            };
            let claim = brief(on_crash);
            store.own(&claim).await?;
            claims.push(claim);
        }
        for claim in &claims {
            let mut patience = Patience::new("its time never came");
            while let Some(record) = store.get(&claim.id).await?
                && record.lease_until.after(record.retention) > record.read_at
            {
                patience.wait().await?;
            }
        }
        let mut purges = Purges::new();
        loop {
            let purged = store.purge(5).await?;
            ensure!(
                purged.changed() <= 5 && purged.abandoned <= purged.removed,
                "a purge of 5 did {purged:?}"
            );
            told |= purged.more && purged.changed() == 5;
            if purges.is_last(&purged)? {
                break;
            }
        }
        if told {
            return Ok(());
        }
    }
    Err("12 records were due, and no purge of 5 did 5 and said that there is more".to_owned())
}
