//! The console, by its routes: guards, scopes, forms, and hostile contents.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::request::Parts;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use idem_runtime::console::{Console, Operator, Refusal, Scopes};
use idem_runtime::fingerprint::Secret;
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, Payload};
use idem_runtime::store::{AuditFilter, ClaimOutcome, ClaimRequest, PageRequest};
use idem_runtime::{
    Idem, Identity, Key, OnCrash, Operation, RecordId, Scope, SqliteStore, State, Store as _,
};
use tower_service::Service as _;

/// Text that would run or break the page if it were not escaped.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";

/// Guard by a header: the name, then what the operator may do and see.
fn guard(request: &Parts) -> Result<Operator, Refusal> {
    let header = request
        .headers
        .get("operator")
        .and_then(|it| it.to_str().ok());
    let mut words = header.ok_or(StatusCode::UNAUTHORIZED)?.split(' ');
    let name = words.next().unwrap_or_default();
    let words: Vec<_> = words.collect();
    let scopes: Vec<_> = words
        .iter()
        .filter_map(|it| it.strip_prefix("scope="))
        .map(Scope::from_stored)
        .collect();
    let scopes = match words.contains(&"all") {
        true => Scopes::All,
        false => Scopes::Only(scopes),
    };
    let mut operator = Operator::new(name, scopes).map_err(|_| StatusCode::FORBIDDEN)?;
    if words.contains(&"change") {
        operator = operator.may_change();
    }
    if words.contains(&"payloads") {
        operator = operator.may_see_payloads();
    }
    Ok(operator)
}

const ANN: &str = "ann all change payloads";
const BOB: &str = "bob all change";
const READER: &str = "eve all";

struct Site {
    idem: Idem<SqliteStore>,
    app: Router,
}

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Site {
    async fn new() -> Self {
        let store = SqliteStore::in_memory().await.unwrap();
        store.migrate().await.unwrap();
        let idem = Idem::new(store);
        let console = Console::new(&idem, guard).secret(Secret::new([7; 16]).unwrap());
        let app = Router::new().nest("/idem", console.router());
        Self { idem, app }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.app.clone().call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    async fn get(&self, operator: &str, path: &str) -> Answer {
        let request = Request::get(format!("/idem{path}")).header("operator", operator);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    async fn post(&self, operator: &str, path: &str, form: &[(&str, &str)]) -> Answer {
        self.post_from("same-origin", operator, path, form).await
    }

    async fn post_from(
        &self,
        site: &str,
        operator: &str,
        path: &str,
        form: &[(&str, &str)],
    ) -> Answer {
        let form: String = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = Request::post(format!("/idem{path}"))
            .header("operator", operator)
            .header("sec-fetch-site", site)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(request.body(Body::from(form)).unwrap()).await
    }

    async fn claim(&self, scope: &str, key: &str) -> Owner {
        let identity = Identity {
            scope: Scope::from_stored(scope),
            operation: Operation::new(format!("letters.{HOSTILE}")).unwrap(),
            key: Key::new(key).unwrap(),
        };
        let claim = ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[7; 32]),
            claim_id: ClaimId::random(),
            lease: Duration::from_secs(600),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Refuse,
            owner_label: None,
            members: None,
        };
        match self.idem.store().claim(&claim).await.unwrap() {
            ClaimOutcome::Granted(granted) => Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            },
            ClaimOutcome::Existing(record) => panic!("the key is in use: {record:?}"),
        }
    }

    async fn interrupted(&self, scope: &str, key: &str) -> RecordId {
        let owner = self.claim(scope, key).await;
        self.idem.store().interrupt(&owner).await.unwrap();
        owner.id
    }

    async fn state(&self, id: &RecordId) -> Option<State> {
        let record = self.idem.records().get(id).await.unwrap();
        record.map(|it| it.state)
    }

    async fn entries(&self) -> Vec<String> {
        let (filter, page) = (AuditFilter::default(), PageRequest::default());
        let audit = self.idem.records().audit(&filter, &page).await;
        let entries = audit.unwrap().entries.into_iter();
        entries
            .map(|it| {
                format!(
                    "{} {}: {}",
                    it.change.actor(),
                    it.action,
                    it.change.reason()
                )
            })
            .collect()
    }
}

/// Value of a hidden field of the first form with it.
fn field(page: &str, name: &str) -> String {
    let begin = format!("name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no {name} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_guard_decides_about_every_page() {
    let site = Site::new().await;
    let id = site.interrupted("a", "k").await;
    let record = format!("/records/{id}");
    let paths = [
        "", "/records", "/stuck", "/audit", "/search", "/outbox", &record,
    ];
    for path in paths {
        let request = Request::get(format!("/idem{path}"))
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            site.send(request).await.status,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }
    for path in [&record[..], "/search"] {
        let request = Request::post(format!("/idem{path}/change"))
            .body(Body::empty())
            .unwrap();
        let status = site.send(request).await.status;
        assert!(
            status == StatusCode::UNAUTHORIZED || status == StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    let page = site.get(READER, &record).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(!page.body.contains("name=\"token\""), "{}", page.body);
}

#[tokio::test]
async fn an_operator_sees_only_the_scopes_of_the_guard() {
    let site = Site::new().await;
    let mine = site.interrupted("tenant-3/ann", "mine").await;
    let other = site.interrupted("tenant-33", "other-key").await;
    let seen = site.get(BOB, &format!("/records/{other}")).await;
    let form = [
        ("token", field(&seen.body, "token")),
        ("observed", field(&seen.body, "observed")),
        ("action", "release".to_owned()),
        ("reason", "checked".to_owned()),
    ];
    let form = form.each_ref().map(|(name, value)| (*name, value.as_str()));
    let bob = "bob change scope=tenant-3";
    assert_eq!(
        site.get(bob, &format!("/records/{mine}")).await.status,
        StatusCode::OK
    );
    assert_eq!(
        site.get(bob, &format!("/records/{other}")).await.status,
        StatusCode::NOT_FOUND
    );
    let denied = site
        .post(bob, &format!("/records/{other}/change"), &form)
        .await;
    assert_eq!(denied.status, StatusCode::NOT_FOUND);
    assert_eq!(site.state(&other).await, Some(State::Interrupted));
    for path in ["/records", "/stuck"] {
        let list = site.get(bob, path).await.body;
        assert!(
            list.contains(">mine<") && !list.contains("other-key"),
            "{list}"
        );
        assert!(!site.get("bob", path).await.body.contains(">mine<"));
    }
    assert!(!site.get(bob, "").await.body.contains("Over time"));
    let made = site
        .post(BOB, &format!("/records/{other}/change"), &form)
        .await;
    assert_eq!(made.status, StatusCode::SEE_OTHER);
    let audit = site.get(bob, "/audit").await.body;
    assert!(
        !audit.contains("other-key") && !audit.contains("checked"),
        "{audit}"
    );
}

#[tokio::test]
async fn of_two_operators_one_wins_and_the_other_is_told_what_changed() {
    let site = Site::new().await;
    let id = site.interrupted("", "k").await;
    let (page, change) = (format!("/records/{id}"), format!("/records/{id}/change"));
    let (anns, bobs) = (
        site.get(ANN, &page).await.body,
        site.get(BOB, &page).await.body,
    );
    let form = |page: &str, action: &'static str, reason: &'static str| {
        [
            ("token", field(page, "token")),
            ("observed", field(page, "observed")),
            ("action", action.to_owned()),
            ("reason", reason.to_owned()),
        ]
    };
    fn borrowed<'a>(form: &'a [(&'static str, String); 4]) -> [(&'a str, &'a str); 4] {
        form.each_ref().map(|(name, value)| (*name, value.as_str()))
    }
    let form_of_ann = form(&anns, "release", "the post office has no letter");
    let won = site.post(ANN, &change, &borrowed(&form_of_ann)).await;
    assert_eq!(won.status, StatusCode::SEE_OTHER, "{}", won.body);
    assert_eq!(
        won.headers[header::LOCATION],
        format!("/idem/records/{id}?done=done")
    );
    let form_of_bob = form(&bobs, "complete", "it was sent");
    let lost = site.post(BOB, &change, &borrowed(&form_of_bob)).await;
    assert_eq!(lost.status, StatusCode::CONFLICT);
    for part in [
        "Nothing was changed",
        "ann changed it by hand",
        "the post office has no letter",
        "released now",
    ] {
        assert!(lost.body.contains(part), "no {part:?} in {}", lost.body);
    }
    assert_eq!(site.state(&id).await, Some(State::Released));
    assert_eq!(
        site.entries().await,
        ["ann released: the post office has no letter"]
    );
}

#[tokio::test]
async fn a_forged_or_incomplete_form_changes_nothing() {
    let site = Site::new().await;
    let id = site.interrupted("", "k").await;
    let other = site.interrupted("", "other").await;
    let change = format!("/records/{id}/change");
    let page = site.get(ANN, &format!("/records/{id}")).await.body;
    let (token, observed) = (field(&page, "token"), field(&page, "observed"));
    let form = |token: &str, action: &str, reason: &str, value: &str| {
        [
            ("token", token),
            ("observed", &observed),
            ("action", action),
            ("reason", reason),
            ("value", value),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let good = form(&token, "release", "checked", "");
    let cases = [
        (
            "cross-site",
            ANN,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-site",
            ANN,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            BOB,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            READER,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form("", "release", "checked", ""),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            &format!("/records/{other}/change"),
            good.clone(),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "release", " ", ""),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "release", "a\nb", ""),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "complete", "checked", "{no json"),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "explode", "checked", ""),
            StatusCode::BAD_REQUEST,
        ),
    ];
    for (from, operator, path, form, status) in cases {
        let form: Vec<_> = form
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let answer = site.post_from(from, operator, path, &form).await;
        assert_eq!(answer.status, status, "{from} {operator} {form:?}");
    }
    assert_eq!(site.state(&id).await, Some(State::Interrupted));
    assert!(site.entries().await.is_empty());
}

#[tokio::test]
async fn hostile_contents_are_text_and_payloads_are_hidden() {
    let site = Site::new().await;
    let owner = site.claim("tenant-3\u{202e}", HOSTILE).await;
    let large = format!("\"{HOSTILE}{}\"", "x".repeat(1024 * 1024));
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: large.into_bytes().into(),
    });
    site.idem.store().complete(&owner, &outcome).await.unwrap();
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
    let payload = format!("{record}/payload");
    assert_eq!(site.get(BOB, &payload).await.status, StatusCode::FORBIDDEN);
    let shown = site.get(ANN, &payload).await.body;
    assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script>"));
    assert!(shown.contains("of which the first 65536 are shown") && shown.len() < 100_000);
}

#[tokio::test]
async fn the_search_redirects_to_an_id_and_puts_no_key_into_a_url() {
    let site = Site::new().await;
    let id = site.interrupted("tenant-3/ann", "order 1").await;
    let operation = format!("letters.{HOSTILE}");
    let form = [
        ("operation", operation.as_str()),
        ("key", "order 1"),
        ("scope", "tenant-3\r\nann"),
    ];
    let found = site.post(READER, "/search", &form).await;
    assert_eq!(
        found.headers[header::LOCATION],
        format!("/idem/records/{id}")
    );
    let wrong = site
        .post(READER, "/search", &[("operation", "o"), ("key", "ä")])
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}
