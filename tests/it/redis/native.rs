//! Claims, replays and completions by native commands: they are used, and they leave everything else to the scripts.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, FromRedisValue, cmd};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{ClaimId, FencingToken, Outcome, Owner, RecordState};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved, StepStore,
};
use idem_runtime::{OnCrash, RedisStore, Store};
use idem_servers::{Options, Server};
use idem_tests::claims::again;
use idem_tests::proxy::{Loss, Proxy};

use super::{claim, key};
use crate::records::{self, HOUR, outcome, own};

async fn server() -> (Server, RedisStore, MultiplexedConnection) {
    let server = Server::redis(&Options::fast()).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    // The first claim of a store runs a script as well.
    own(&store, &records::fresh()).await;
    let client = Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    (server, store, connection)
}

async fn ask<T: FromRedisValue>(connection: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    let command = command.arg(&words[1..]);
    command.query_async(connection).await.unwrap()
}

/// Number of scripts that the server has run.
fn scripts(server: &Server) -> u64 {
    let said = server.query("INFO commandstats").unwrap();
    let calls = ["cmdstat_eval:calls=", "cmdstat_evalsha:calls="].map(|name| {
        let mut lines = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name));
        let number = lines.next().and_then(|it| it.split(',').next());
        number.map_or(0, |it| it.parse::<u64>().unwrap())
    });
    calls.iter().sum()
}

/// Returns true if the server compares in `SET`.
async fn has_ifeq(connection: &mut MultiplexedConnection) -> bool {
    let mut set = cmd("SET");
    set.arg("probe").arg("a").arg("IFEQ").arg("b");
    set.query_async::<Option<String>>(connection).await.is_ok()
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn first_calls_and_replays_run_no_script_that_a_command_can_replace() {
    let (server, store, mut connection) = server().await;
    let first = claim(OnCrash::Rerun);
    let before = scripts(&server);
    let owner = own(&store, &first).await;
    assert_eq!(scripts(&server), before, "the claim");
    let running = store.claim(&again(&first)).await.unwrap();
    assert!(matches!(running, ClaimOutcome::Existing(it) if it.state == RecordState::Running));
    assert_eq!(scripts(&server), before, "a duplicate");
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    // The first completion finds out what the server has, and loads the script.
    let completed = scripts(&server);
    let by_script = !has_ifeq(&mut connection).await;
    assert_eq!(completed > before, by_script);
    let replayed = store.claim(&again(&first)).await.unwrap();
    assert!(matches!(replayed, ClaimOutcome::Existing(it) if it.state == RecordState::Completed));
    assert_eq!(scripts(&server), completed, "a replay");
    for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
        let before = scripts(&server);
        let claim = ClaimRequest {
            on_crash,
            ..records::fresh()
        };
        own(&store, &claim).await;
        assert!(scripts(&server) > before, "{on_crash:?} has no expiry");
    }
}

/// Otherwise its body would run, and its outcome could not be stored.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_user_who_may_not_run_scripts_claims_nothing() {
    let (server, _, mut connection) = server().await;
    let user = "ACL SETUSER plain on >secret ~* +@all -eval -evalsha";
    server.query(user).unwrap();
    let url = server.url().replace("redis://", "redis://plain:secret@");
    let store = RedisStore::connect(&url).await.unwrap();
    let claim = records::fresh();
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
    let found: u64 = ask(&mut connection, &["EXISTS", &key("idem:", &claim)]).await;
    assert_eq!(found, 0);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_claim_whose_reply_is_lost_is_granted_again_with_its_token() {
    let (server, store, _) = server().await;
    let address = ([127, 0, 0, 1], server.port());
    let proxy = Proxy::start(address.into()).await.unwrap();
    let through = RedisStore::connect(&format!("redis://{}/", proxy.address()))
        .await
        .unwrap();
    own(&through, &records::fresh()).await;
    let claim = claim(OnCrash::Rerun);
    proxy.lose(Loss::Reply);
    let error = through.claim(&claim).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let record = store.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(record.claim_id, Some(claim.claim_id));
    let owner = own(&store, &claim).await;
    assert_eq!(owner.fencing_token, record.fencing_token);
    let renewed = store.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(renewed.first_claimed_at, record.first_claimed_at);
    assert!(renewed.lease_until >= record.lease_until);
    let done = store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn no_two_generations_share_a_token() {
    let (store, _) = super::store().await;
    let claim = claim(OnCrash::Rerun);
    let mut last = FencingToken::from_number(0);
    for round in 0..200 {
        let claim = again(&claim);
        let owner = own(&store, &claim).await;
        assert!(owner.fencing_token > last, "round {round}");
        last = owner.fencing_token;
        match round % 3 {
            0 => store.release(&owner).await.unwrap(),
            1 => store.complete(&owner, &outcome(b"1")).await.unwrap(),
            _ => store.interrupt(&owner).await.unwrap(),
        };
        if round % 3 > 0 || round % 2 == 0 {
            let record = store.get(&claim.id).await.unwrap().unwrap();
            let observed = record.observation();
            let resolved = store.resolve(&observed, &Resolution::Erase).await;
            assert_eq!(resolved.unwrap(), Resolved::Done, "round {round}");
        }
    }
}

/// A record that was changed since its claim is completed by the script, which decides.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_completion_finds_what_has_happened_since_the_claim() {
    let (_server, store, _) = server().await;
    // Another process knows nothing of the claims of this one.
    let other = RedisStore::connect(&_server.url()).await.unwrap();
    let payload = outcome(b"step").payload().unwrap().clone();

    let stepped = records::fresh();
    let owner = own(&store, &stepped).await;
    other.save_step(&owner, "one", &payload).await.unwrap();
    assert_eq!(
        other.renew(&owner, HOUR).await.unwrap(),
        FencedWrite::Applied
    );
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    let record = store.get(&stepped.id).await.unwrap().unwrap();
    assert_eq!(record.outcome(), Some(outcome(b"1")));
    assert_eq!(record.fencing_token, owner.fencing_token);
    let again_done = store.complete(&owner, &outcome(b"2")).await.unwrap();
    assert_eq!(again_done, FencedWrite::Applied, "a repetition");

    let released = records::fresh();
    let owner = own(&store, &released).await;
    other.release(&owner).await.unwrap();
    let successor = again(&released);
    let next = own(&other, &successor).await;
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Fenced);
    let done = other.complete(&next, &outcome(b"2")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);

    let wrong = records::fresh();
    let owner = own(&store, &wrong).await;
    for number in [-1000, -1, 1, 1000] {
        let fencing_token = FencingToken::from_number(owner.fencing_token.number() + number);
        let claim_id = ClaimId::random();
        for odd in [
            Owner { claim_id, ..owner },
            Owner {
                claim_id,
                fencing_token,
                ..owner
            },
        ] {
            let done = store.complete(&odd, &outcome(b"1")).await.unwrap();
            assert_eq!(done, FencedWrite::Fenced, "{number}");
        }
    }
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied, "the script knows the owner");
}

/// `MIGRATE` keeps the time that is left, so the expiry of a key moves.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn an_owner_keeps_a_first_claim_whose_expiry_moved() {
    let (_server, store, mut connection) = server().await;
    for moved_by in [-700_i64, 700] {
        let claim = records::fresh();
        let owner = own(&store, &claim).await;
        let key = key("idem:", &claim);
        let expiry: i64 = ask(&mut connection, &["PEXPIRETIME", &key]).await;
        let later = (expiry + moved_by).to_string();
        let _: i64 = ask(&mut connection, &["PEXPIREAT", &key, &later]).await;
        assert!(store.saved_steps(&owner).await.unwrap().is_some());
        let renewed = store.renew(&owner, HOUR).await.unwrap();
        assert_eq!(renewed, FencedWrite::Applied, "{moved_by}");
        let record = store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.fencing_token, owner.fencing_token);
        let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
        assert_eq!(done, FencedWrite::Applied);
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_completed_record_is_small() {
    let (_server, store, mut connection) = server().await;
    let claim = claim(OnCrash::Rerun);
    let owner = own(&store, &claim).await;
    store.complete(&owner, &outcome(b"12345678")).await.unwrap();
    let usage: u64 = ask(&mut connection, &["MEMORY", "USAGE", &key("idem:", &claim)]).await;
    assert!(usage <= 320, "{usage} bytes");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_short_lease_or_retention_is_exact() {
    let (store, _) = super::store().await;
    for (lease, retention) in [
        (Duration::from_micros(1500), HOUR),
        (HOUR, Duration::from_micros(1500)),
        (
            Duration::from_micros(1_000_001),
            Duration::from_micros(60_000_001),
        ),
    ] {
        let claim = ClaimRequest {
            lease,
            retention,
            ..records::fresh()
        };
        let owner = own(&store, &claim).await;
        let record = store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.retention, retention);
        assert_eq!(record.lease_until, record.first_claimed_at.after(lease));
        assert_eq!(record.fencing_token, owner.fencing_token);
    }
}
