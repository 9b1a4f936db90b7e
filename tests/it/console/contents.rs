//! What a page shows of records with hostile, large or many contents.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::{StatusCode, header};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, OwnerLabel, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite, ManualChange};
use idem_runtime::{Key, OnCrash, Scope, Store as _};
use idem_tests::on_stores;

use super::{ANN, BOB, HOSTILE, Site};

on_stores! { [operators] Site::open:
    hostile_contents_are_text_and_payloads_are_hidden,
    of_a_long_past_a_part_is_shown,
    the_overview_says_who_deletes_expired_records,
}

async fn the_overview_says_who_deletes_expired_records(site: Site) {
    site.claim("", "k").await;
    let page = site.get(ANN, "").await.body;
    let by_itself = page.contains("The store deletes expired records itself.");
    assert_eq!(by_itself, site.idem.store().expires_by_itself(), "{page}");
    assert_eq!(page.contains("Due for the purge"), !by_itself, "{page}");
    assert!(page.contains("<polyline"), "{page}");
}

async fn hostile_contents_are_text_and_payloads_are_hidden(site: Site) {
    let owner = site.claim("tenant-3\u{202e}", HOSTILE).await;
    let large = format!("\"{HOSTILE}{}\"", "x".repeat(1024 * 1024));
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: large.into_bytes().into(),
    });
    site.idem.store().complete(&owner, &outcome).await.unwrap();
    let label = OwnerLabel::new(HOSTILE).unwrap();
    for _ in 0..45 {
        let attempts = site.idem.store().attempts().unwrap();
        let noted = attempts.note_replay(&owner.id, owner.fencing_token, Some(&label));
        noted.await.unwrap();
    }
    let record = format!("/records/{}", owner.id);
    for path in [
        "",
        "/records",
        "/records?operation=%3Cscript%3E&after=%3Cscript%3E",
        "/search",
        &record,
    ] {
        let page = site.get(ANN, path).await;
        assert!(
            !page.body.contains("<script>") && !page.body.contains("<img"),
            "{path}"
        );
        assert!(
            !page.body.contains('\u{202e}') && page.body.len() < 100_000,
            "{path}"
        );
        assert!(
            !page.body.contains("style=") && !page.body.contains("onerror=alert(2)>\""),
            "{path}"
        );
        let policy = page.headers[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(page.headers[header::CACHE_CONTROL], "no-store");
        assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
    let page = site.get(ANN, &record).await.body;
    assert!(page.contains("Replays that were noted"), "{page}");
    let payload = format!("{record}/payload");
    assert_eq!(site.get(BOB, &payload).await.status, StatusCode::FORBIDDEN);
    let shown = site.get(ANN, &payload).await.body;
    assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script>"));
    assert!(shown.contains("of which the first 65536 are shown") && shown.len() < 100_000);
}

async fn claim(site: &Site, request: &ClaimRequest) -> Owner {
    match site.idem.store().claim(request).await.unwrap() {
        ClaimOutcome::Granted(granted) => Owner {
            id: request.id,
            claim_id: request.claim_id,
            fencing_token: granted.fencing_token,
        },
        ClaimOutcome::Existing(record) => panic!("the key is in use: {record:?}"),
    }
}

fn request(scope: Scope, operation: String, key: &str, owner: &str) -> ClaimRequest {
    let identity = Identity {
        scope,
        operation: Operation::new(operation).unwrap(),
        key: Key::new(key).unwrap(),
    };
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: Duration::from_secs(600),
        retention: Duration::from_secs(3600),
        on_crash: OnCrash::Refuse,
        owner_label: Some(OwnerLabel::new(owner).unwrap()),
        members: None,
    }
}

async fn save_steps(site: &Site, owner: &Owner, names: impl Iterator<Item = String>, size: usize) {
    let payload = Payload {
        codec: "json/1".into(),
        bytes: format!("\"{}\"", "x".repeat(size)).into_bytes().into(),
    };
    let store = site.idem.store();
    let saves = futures_util::stream::iter(names).for_each_concurrent(8, |name| {
        let payload = &payload;
        async move {
            let steps = store.steps().unwrap();
            let saved = steps.save_step(owner, &name, payload).await.unwrap();
            assert_eq!(saved, FencedWrite::Applied);
        }
    });
    saves.await;
}

async fn of_a_long_past_a_part_is_shown(site: Site) {
    const ATTEMPTS: usize = 1_000;
    const STEPS: usize = 2_000;
    let mut made = request(Scope::none(), "letters.post".to_owned(), "k", "host-1/17");
    for _ in 1..ATTEMPTS {
        let owner = claim(&site, &made).await;
        site.idem.store().release(&owner).await.unwrap();
        made.claim_id = ClaimId::random();
    }
    let owner = claim(&site, &made).await;
    save_steps(
        &site,
        &owner,
        (0..STEPS).map(|it| format!("step {it:04}")),
        9_000,
    )
    .await;
    let record = format!("/records/{}", owner.id);
    let page = site.get(ANN, &record).await;
    assert_eq!(page.status, StatusCode::OK);
    for part in [
        "earlier attempts are left out",
        "1960 steps are left out",
        "1960 more steps are not shown",
        "Timeline: 1000 attempts, 2000 saved steps",
        "<td class=\"number\" data-label=\"Attempt\">1000</td>",
    ] {
        assert!(page.body.contains(part), "no {part:?} in {}", page.body);
    }
    assert!(page.body.len() < 60_000, "{} bytes", page.body.len());
    let (_, picture) = page.body.split_once("<svg").unwrap();
    let (picture, _) = picture.split_once("</svg>").unwrap();
    assert!(picture.len() < 12_000, "{} bytes", picture.len());
    assert!(picture.matches("<rect").count() <= 60, "{picture}");
    let (_, height) = picture.split_once(" height=\"").unwrap();
    let height = height.split('"').next().unwrap();
    assert!(height.parse::<f64>().unwrap() <= 550.0, "{height}");

    // The results of all steps have 18 MB.
    let payloads = site.get(ANN, &format!("{record}/payload")).await;
    assert!(payloads.body.contains("too large to be read here"));
    assert!(payloads.body.contains("1960 more steps are not shown"));
    assert!(!payloads.body.contains("xxx") && payloads.body.len() < 60_000);
    let few = claim(
        &site,
        &request(Scope::none(), "letters.post".to_owned(), "few", "h"),
    )
    .await;
    save_steps(&site, &few, ["one".to_owned()].into_iter(), 9_000).await;
    let payloads = site.get(ANN, &format!("/records/{}/payload", few.id)).await;
    assert!(
        payloads
            .body
            .contains("9002 bytes, of which the first 1024 are shown")
    );
    assert!(payloads.body.contains("xxx") && payloads.body.len() < 60_000);
}

/// Every text is as long as it may be, and each of its characters is one that HTML escapes.
#[tokio::test]
async fn pages_of_the_longest_texts_are_bounded() {
    let site = Site::sqlite().await;
    let quotes = |length| "\"".repeat(length);
    let scope = (0..400).fold(Scope::none(), |scope, _| {
        scope.join(&Scope::new(quotes(255)).unwrap())
    });
    let mut made = request(scope.clone(), quotes(255), &quotes(255), &quotes(120));
    let change = ManualChange::new(quotes(120), quotes(1000)).unwrap();
    for round in 0..45 {
        made.claim_id = ClaimId::random();
        let owner = claim(&site, &made).await;
        if round == 44 {
            let names = (100..145).map(|it| format!("{it}{}", quotes(252)));
            save_steps(&site, &owner, names, 2_000).await;
        }
        site.idem.store().interrupt(&owner).await.unwrap();
        let record = site.idem.records().get(&made.id).await.unwrap().unwrap();
        if round < 44 {
            let records = site.idem.records();
            records
                .by(&change)
                .release(&record.observation())
                .await
                .unwrap();
        }
    }
    for number in 100..160 {
        let key = format!("{number}{}", quotes(252));
        claim(&site, &request(scope.clone(), quotes(255), &key, "h")).await;
    }
    let record = format!("/records/{}", made.id);
    for (path, limit, part) in [
        (record.clone(), 600_000, "Older changes are left out"),
        (format!("{record}/payload"), 200_000, "5 more steps"),
        ("/records".to_owned(), 600_000, "Next page"),
        ("/audit".to_owned(), 700_000, "Manual changes"),
        (String::new(), 60_000, "Over time"),
    ] {
        let page = site.get(ANN, &path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        assert!(
            page.body.len() < limit,
            "{path} has {} bytes",
            page.body.len()
        );
        assert!(
            path == "/audit" || page.body.contains(part),
            "{path}: no {part:?}"
        );
        assert!(!page.body.contains(&quotes(30)), "{path}");
    }
}
