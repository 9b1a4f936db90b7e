//! Cases on storage without loss: identities, payloads and durations at their limits.

use std::time::Duration;

use super::kit::*;
use crate::key::{Identity, Scope};
use crate::record::{OnCrash, Outcome, Payload};
use crate::store::{ClaimRequest, FencedWrite};

/// Claims a record with this identity, and compares it with the readings by id and from the listing of its operation.
async fn keeps(store: &Subject, identity: Identity) -> CaseResult {
    let claim = about(identity);
    store.own(&claim).await?;
    let record = store.record(&claim.id).await?;
    ensure!(
        record.identity == claim.identity
            && record.identity.key.as_str() == claim.identity.key.as_str()
            && record.identity.scope.as_str() == claim.identity.scope.as_str(),
        "{:?} {:?} {:?} was kept as {:?} {:?} {:?}",
        claim.identity.scope.as_str(),
        claim.identity.operation.as_str(),
        claim.identity.key.as_str(),
        record.identity.scope.as_str(),
        record.identity.operation.as_str(),
        record.identity.key.as_str()
    );
    Ok(())
}

fn identity(scope: Scope, name: &str, text: &str) -> Identity {
    Identity {
        scope,
        operation: operation(name),
        key: key(text),
    }
}

fn scope(part: &str) -> Result<Scope, String> {
    Scope::new(part).map_err(|error| format!("{part:?}: {error}"))
}

pub(super) async fn every_key_byte_is_kept(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let all: String = (0x20..=0x7e_u8).map(char::from).collect();
    keeps(&store, identity(Scope::none(), &name, &all)).await?;
    // Each character as the whole text, and at both ends, where a column may trim or fold it.
    for byte in 0x20..=0x7e_u8 {
        let byte = char::from(byte);
        keeps(
            &store,
            identity(Scope::none(), &name, &format!("{byte}x{byte}")),
        )
        .await?;
    }
    for text in [" ", "  ", "\"'", "%_\\", "a ", " a", "A", "a", "NULL"] {
        keeps(&store, identity(Scope::none(), &name, text)).await?;
    }
    Ok(())
}

pub(super) async fn long_identities_are_kept(store: Subject) -> CaseResult {
    let unique = unique();
    let fill = |with: &str| {
        let mut text = unique.clone();
        while text.len() + with.len() <= 255 {
            text.push_str(with);
        }
        text.push_str(&"x".repeat(255 - text.len()));
        text
    };
    let long = fill("s");
    let key_scope = scope(&long)?;
    let nested = key_scope.join(&scope(&fill("%"))?);
    keeps(&store, identity(Scope::none(), &unique, &"k".repeat(255))).await?;
    keeps(&store, identity(key_scope, &fill("o"), &fill("k"))).await?;
    keeps(&store, identity(nested, &fill("é"), &fill(" "))).await
}

pub(super) async fn scopes_are_kept_in_unicode(store: Subject) -> CaseResult {
    let name = format!("Überweisung/{}", unique());
    for part in [
        "Müller & Söhne",
        "株式会社",
        "شركة",
        "🦀",
        "a/b",
        "a%2Fb",
        "e\u{301}",
        "\u{e9}",
        " ",
        "tenant ",
        "TENANT ",
        "'; DROP TABLE idem_records; --",
    ] {
        keeps(&store, identity(scope(part)?, &name, "k")).await?;
    }
    Ok(())
}

pub(super) async fn split_identities_differ(store: Subject) -> CaseResult {
    let unique = unique();
    let identities = [
        identity(scope(&unique)?, "ab", "c"),
        identity(scope(&unique)?, "a", "bc"),
        identity(scope(&format!("{unique}a"))?, "b", "c"),
        identity(scope(&unique)?.join(&scope("a")?), "b", "c"),
        identity(scope(&format!("{unique}/a"))?, "b", "c"),
        identity(Scope::none(), &unique, "abc"),
        identity(Scope::none(), &format!("{unique}a"), "bc"),
        identity(scope("a")?, &unique, "bc"),
        identity(scope(&unique)?, "AB", "c"),
        identity(scope(&unique)?, "ab", "C"),
        identity(scope(&unique)?, "ab", "c "),
    ];
    for identity in identities {
        keeps(&store, identity).await?;
    }
    Ok(())
}

async fn completes(store: &Subject, payload: Payload) -> CaseResult {
    for outcome in [
        Outcome::Completed(payload.clone()),
        Outcome::Failed(payload.clone()),
    ] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        let done = store.complete(&owner, &outcome).await?;
        ensure!(done == FencedWrite::Applied, "the completion was refused");
        let record = store.record(&claim.id).await?;
        ensure!(
            record.outcome().as_ref() == Some(&outcome),
            "{payload:?} was kept as {:?}{}",
            record.payload,
            match &record.payload {
                Some(kept) if kept.bytes.len() == payload.bytes.len() => ", with other bytes",
                _ => "",
            }
        );
    }
    Ok(())
}

pub(super) async fn payloads_are_kept(store: Subject) -> CaseResult {
    completes(&store, payload(b"")).await?;
    let every_byte: Vec<u8> = (0..=255).collect();
    completes(&store, payload(&every_byte)).await?;
    completes(&store, payload(&[0; 3])).await?;
    let large: Vec<u8> = (0..1024 * 1024_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    completes(&store, payload(&large)).await
}

pub(super) async fn codec_tags_are_kept(store: Subject) -> CaseResult {
    for tag in [
        "json/1",
        "cbor/1",
        "x",
        "",
        "someone's own codec, v2",
        "Größe/🦀",
        "JSON/1 ",
    ] {
        let tagged = Payload {
            codec: tag.to_owned().into(),
            ..payload(b"1")
        };
        completes(&store, tagged).await?;
    }
    Ok(())
}

pub(super) async fn endless_durations_are_kept(store: Subject) -> CaseResult {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    for (lease, retention) in [
        (Duration::MAX, Duration::MAX),
        (Duration::MAX, SHORT),
        (LONG, Duration::MAX),
        (
            Duration::from_micros(i64::MAX as u64),
            Duration::from_secs(u64::MAX),
        ),
    ] {
        for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
            let claim = ClaimRequest {
                lease,
                retention,
                on_crash,
                ..fresh()
            };
            let owner = store.own(&claim).await?;
            store.purge(100).await?;
            let record = store.denied(&other(&claim)).await?;
            ensure!(
                !record.is_lapsed()
                    && record.lease_until >= record.read_at.after(lease.min(CENTURY) - LONG / 2)
                    && record.retention >= retention.min(CENTURY),
                "a lease of {lease:?} and a retention of {retention:?} were kept as {record:?}"
            );
            let renewed = store.renew(&owner, Duration::MAX).await?;
            ensure!(renewed == FencedWrite::Applied, "the renewal was refused");
            let record = store.record(&claim.id).await?;
            ensure!(
                record.lease_until >= record.read_at.after(CENTURY),
                "an endless renewal was kept as {record:?}"
            );
            store.complete(&owner, &outcome()).await?;
            if retention > CENTURY {
                store.purge(100).await?;
                let record = store.record(&claim.id).await?;
                ensure!(
                    record
                        .expires_at()
                        .is_some_and(|at| at >= record.read_at.after(CENTURY)),
                    "{record:?} expires within a century"
                );
            }
        }
    }
    Ok(())
}
