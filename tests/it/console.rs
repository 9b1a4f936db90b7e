//! The console, by its routes, on each store: guards, scopes, forms, and hostile contents.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::request::Parts;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use idem_console::{Console, Operator, Refusal, Scopes};
use idem_runtime::fingerprint::Secret;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{ClaimId, Digest, Owner, RecordState};
use idem_runtime::store::{AuditFilter, ClaimOutcome, ClaimRequest, PageRequest};
use idem_runtime::{Idem, Key, OnCrash, Scope, SqliteStore, Store as _};
use idem_tests::places::{Backend, Place};
use tower_service::Service as _;

mod changes;
mod contents;
mod lists;
mod many;
mod mounting;
mod requests;
mod scopes;

/// Text that would run or break the page if it were not escaped.
pub(crate) const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";

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

pub(crate) const ANN: &str = "ann all change payloads";
pub(crate) const BOB: &str = "bob all change";
pub(crate) const READER: &str = "eve all";

/// A console under `/idem`.
pub(crate) struct Site {
    pub(crate) idem: Idem<Arc<dyn OperatorStore>>,
    app: Router,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

impl Site {
    /// A console on a store in memory.
    pub(crate) async fn sqlite() -> Self {
        Self::on(Self::in_memory().await, None)
    }

    pub(crate) async fn open<S: Backend + OperatorStore>(place: Place<S>) -> Self {
        Self::on(Arc::new(place.open().await.unwrap()), None)
    }

    async fn in_memory() -> Arc<dyn OperatorStore> {
        let store = SqliteStore::in_memory().await.unwrap();
        store.migrate().await.unwrap();
        Arc::new(store)
    }

    /// A console that shows this outbox, beside an empty store.
    pub(crate) async fn with_outbox(outbox: &Outbox) -> Self {
        Self::on(Self::in_memory().await, Some(outbox))
    }

    fn on(store: Arc<dyn OperatorStore>, outbox: Option<&Outbox>) -> Self {
        // Some records are large, and the machine may be busy.
        let idem = Idem::builder(store)
            .store_timeout(Duration::from_secs(60))
            .build();
        let console = Console::new(&idem, guard).secret(Secret::new([7; 16]).unwrap());
        let console = match outbox {
            Some(outbox) => console.outbox(outbox),
            None => console,
        };
        let app = Router::new().nest("/idem", console.router());
        Self { idem, app }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.app.clone().call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn get(&self, operator: &str, path: &str) -> Answer {
        let request = Request::get(format!("/idem{path}")).header("operator", operator);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, operator: &str, path: &str, form: &[(&str, &str)]) -> Answer {
        self.post_from("same-origin", operator, path, form).await
    }

    pub(crate) async fn post_from(
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

    pub(crate) async fn claim(&self, scope: &str, key: &str) -> Owner {
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

    pub(crate) async fn interrupted(&self, scope: &str, key: &str) -> RecordId {
        let owner = self.claim(scope, key).await;
        self.idem.store().interrupt(&owner).await.unwrap();
        owner.id
    }

    pub(crate) async fn state(&self, id: &RecordId) -> Option<RecordState> {
        let record = self.idem.records().get(id).await.unwrap();
        record.map(|it| it.state)
    }

    pub(crate) async fn entries(&self) -> Vec<String> {
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
pub(crate) fn field(page: &str, name: &str) -> String {
    let begin = format!("name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no {name} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// The fields of a form, as [`Site::post`] takes them.
pub(crate) fn borrowed<'a>(form: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    form.iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

/// Form of a record's page.
fn form(page: &str, action: &str, reason: &str) -> Vec<(&'static str, String)> {
    vec![
        ("token", field(page, "token")),
        ("observed", field(page, "observed")),
        ("action", action.to_owned()),
        ("reason", reason.to_owned()),
    ]
}
