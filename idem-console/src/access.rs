//! Reads and changes within what the guard allows. The store and the outbox are private to this module, so every other part
//! of the console goes through the checks here.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, OriginalUri};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use idem_runtime::Idem;
use idem_runtime::error::{Error, StoreError};
use idem_runtime::fingerprint::Secret;
use idem_runtime::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
use idem_runtime::operator::{AgeOrder, Count, OperatorStore, OptionalIndex, StepsOfRecord};
use idem_runtime::record::{Observation, Payload, Record};
use idem_runtime::store::{
    Attempts, AuditEntry, AuditFilter, Cursor, Filter, ListedRecord, ManualChange, Page,
    PageRequest, Resolution, Resolved, Unreadable,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use self::messages::Outbox;
use self::trail::Trail;
use super::counts::Counts;
use super::failure::Failure;
use super::guard::{Guard, MayChange, MayShowPayloads, Operator, Scopes};
use super::origin::is_for_host;
use super::token;

#[cfg(any(
    feature = "outbox-sqlite",
    feature = "outbox-postgres",
    feature = "outbox-mysql"
))]
mod messages;
#[cfg(not(any(
    feature = "outbox-sqlite",
    feature = "outbox-postgres",
    feature = "outbox-mysql"
)))]
mod messages {
    /// Without the features for its databases there is no outbox.
    pub(super) type Outbox = std::convert::Infallible;
}
mod trail;
mod values;

pub(super) use self::trail::Turns;
pub(super) use self::values::refused;

/// Number of reads of the store that run at the same time, however many browsers look.
const MAX_READS: usize = 4;
/// Time that a request waits for one of them.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Number of pages of the store that one page of an operator of few scopes reads.
const MAX_PAGES: usize = 20;
/// Number of records that a page of an operator reads at most in a SQL store. A page of the store reads 10,000.
pub(super) const MAX_EXAMINED: &str = "200,000";

/// An operator of single scopes learns that a record does not exist only after a multiple of this time. Otherwise the time
/// of the answer would tell whether another scope has the record.
const CONCEALING_TIME: Duration = Duration::from_millis(25);

/// Size of the payloads of all steps of a record up to which they are read.
const MAX_STEP_BYTES: u64 = 16 * 1024 * 1024;

/// State of a console.
pub(super) struct Shared {
    idem: Idem,
    store: Arc<dyn OperatorStore>,
    guard: Box<dyn Guard>,
    reads: Semaphore,
    counts: Counts,
    secret: Secret,
    pub(super) settings: Settings,
}

/// Settings of a console.
pub(super) struct Settings {
    pub(super) title: String,
    pub(super) base_path: Option<String>,
    pub(super) allowed_hosts: Option<Vec<String>>,
    pub(super) outbox: Option<Outbox>,
}

impl Shared {
    pub(super) fn new(
        idem: Idem,
        store: Arc<dyn OperatorStore>,
        guard: Box<dyn Guard>,
        secret: Secret,
        settings: Settings,
    ) -> Self {
        Self {
            counts: Counts::new(Arc::clone(&store)),
            idem,
            store,
            guard,
            reads: Semaphore::new(MAX_READS),
            secret,
            settings,
        }
    }
}

/// A record without its payload.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    /// The record. Its payload is always `None`.
    pub(super) record: Record,
    /// Codec and size of the payload, in bytes.
    pub(super) payload: Option<(String, usize)>,
}

impl Summary {
    fn of(mut record: Record) -> Self {
        let payload = record.payload.take();
        Self {
            payload: payload.map(|it| (it.codec.into_owned(), it.bytes.len())),
            record,
        }
    }
}

/// Part of a listing.
#[derive(Debug)]
pub(super) struct Listing<T> {
    pub(super) items: Vec<T>,
    /// Items that the store passed over. Their scopes are unknown, so only operators of all scopes see them.
    pub(super) unreadable: Vec<Unreadable>,
    /// The pages around this one.
    pub(super) turns: Turns,
    /// Part of the store that was read up to the end of this page, if the position tells it. Only for operators of all
    /// scopes.
    pub(super) share: Option<f64>,
}

/// Pages of the store that are read for one page of an operator: until there are enough items that the operator sees, or
/// until that has taken too long.
struct Pages<'a, T> {
    list: &'a str,
    trail: Trail,
    limit: usize,
    items: Vec<T>,
    unreadable: Vec<Unreadable>,
    position: Option<Cursor>,
    /// Number of pages that may still be read, and the time for which another one may begin.
    left: usize,
    began: Instant,
    patience: Duration,
}

impl<T> Pages<'_, T> {
    fn next_request(&mut self) -> Option<PageRequest> {
        let is_first = self.left == MAX_PAGES;
        let is_over =
            self.left == 0 || self.position.is_none() || self.began.elapsed() >= self.patience;
        if !is_first && (is_over || self.items.len() >= self.limit) {
            return None;
        }
        self.left -= 1;
        Some(PageRequest {
            limit: u32::try_from(self.limit - self.items.len()).unwrap_or(1),
            after: self.position.take(),
        })
    }

    fn add(
        &mut self,
        seen: impl Iterator<Item = T>,
        unreadable: Vec<Unreadable>,
        next: Option<Cursor>,
    ) {
        self.items.extend(seen);
        self.unreadable.extend(unreadable);
        self.position = next;
    }
}

/// An operator whom the guard has admitted.
pub(super) struct Access {
    shared: Arc<Shared>,
    operator: Operator,
    base: String,
    arrived: Instant,
}

impl FromRequestParts<Arc<Shared>> for Access {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Response> {
        let arrived = Instant::now();
        if let Some(hosts) = &shared.settings.allowed_hosts
            && !is_for_host(parts, hosts)
        {
            let text = "This is none of the hosts under which this page may be read: add it to the allowed hosts of the \
                        console.\n";
            return Err((StatusCode::MISDIRECTED_REQUEST, text).into_response());
        }
        let admitted = shared.guard.admit(parts).await;
        let operator = admitted.map_err(IntoResponse::into_response)?;
        Ok(Self {
            base: base_of(parts, shared.settings.base_path.as_deref()),
            shared: Arc::clone(shared),
            operator,
            arrived,
        })
    }
}

/// Path under which the console is mounted, without a slash at its end.
fn base_of(parts: &Parts, set: Option<&str>) -> String {
    if let Some(base) = set {
        return base.trim_end_matches('/').to_owned();
    }
    let inner = parts.uri.path();
    let whole = parts.extensions.get::<OriginalUri>();
    let whole = whole.map_or(inner, |uri| uri.0.path());
    let base = match inner {
        "/" => whole,
        inner => whole.strip_suffix(inner).unwrap_or_default(),
    };
    let base = base.trim_end_matches('/');
    // A browser reads two slashes as the begin of a host, and a backslash as a slash.
    match base.contains('\\') || base.starts_with("//") {
        true => String::new(),
        false => base.to_owned(),
    }
}

impl Access {
    /// URL of a page of the console; of the overview if the path is empty.
    pub(super) fn link(&self, path: &str) -> String {
        match (self.base.as_str(), path) {
            ("", "") => "/".to_owned(),
            (base, "") => base.to_owned(),
            (base, path) => format!("{base}/{path}"),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(super) fn name(&self) -> &str {
        self.operator.name()
    }

    pub(super) fn change(&self) -> Option<MayChange> {
        self.operator.change()
    }

    pub(super) fn payloads(&self) -> Option<MayShowPayloads> {
        self.operator.payloads()
    }

    pub(super) fn sees_all(&self) -> bool {
        *self.operator.scopes() == Scopes::All
    }

    /// Waits so long that the time of an answer tells nothing about records of other scopes.
    pub(super) async fn conceal_time(&self) {
        if !self.sees_all() {
            let units = self.arrived.elapsed().as_micros() / CONCEALING_TIME.as_micros() + 1;
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            tokio::time::sleep_until(self.arrived + CONCEALING_TIME * units).await;
        }
    }

    /// Counts of the store, which are of all scopes. `None` for an operator of single scopes.
    pub(super) fn counts(&self) -> Option<&Counts> {
        self.sees_all().then_some(&self.shared.counts)
    }

    /// Number of all records, if they were counted for the overview. `None` for an operator of single scopes.
    pub(super) fn known_records(&self) -> Option<Count> {
        self.counts()?.latest_records()
    }

    /// Returns true if the store deletes expired records itself.
    pub(super) fn expires_by_itself(&self) -> bool {
        self.shared.store.expires_by_itself()
    }

    /// Token for a form about this subject.
    pub(super) fn token(&self, subject: &str) -> String {
        token::make(&self.shared.secret, self.name(), subject)
    }

    /// Returns true if a form about this subject has a valid token.
    pub(super) fn is_valid(&self, subject: &str, token: &str) -> bool {
        token::is_valid(&self.shared.secret, self.name(), subject, token)
    }

    /// Returns true if the operator sees the outbox, which has no scopes.
    pub(super) fn shows_outbox(&self) -> bool {
        self.settings().outbox.is_some() && self.sees_all()
    }

    /// The way to the page of a list at a sealed position. The first page if there is none.
    fn trail(&self, list: &str, sealed: Option<&str>) -> Result<Trail, Failure> {
        let Some(sealed) = sealed else {
            return Ok(Trail::default());
        };
        match self.opened(list, sealed) {
            Some(text) => Ok(Trail::read(&text)),
            None => Err(Failure::Input(
                "The link is not one that you got from this list. Begin again at its first page."
                    .to_owned(),
            )),
        }
    }

    /// Sealed positions of the pages around a page.
    fn turns(&self, list: &str, trail: &Trail, next: Option<&Cursor>) -> Turns {
        let sealed = |trail: &Trail| self.sealed(list, &trail.text());
        Turns {
            is_first: trail.is_first(),
            previous: trail.previous().as_ref().map(sealed),
            next: next.map(|next| sealed(&trail.next(next))),
        }
    }

    /// Text for a URL that only this operator can use, and only for this purpose.
    pub(super) fn sealed(&self, purpose: &str, text: &str) -> String {
        token::seal(&self.shared.secret, self.name(), purpose, text)
    }

    /// Text that was sealed for this purpose.
    pub(super) fn opened(&self, purpose: &str, sealed: &str) -> Option<String> {
        token::open(&self.shared.secret, self.name(), purpose, sealed)
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, Failure> {
        let permit = tokio::time::timeout(MAX_WAIT, self.shared.reads.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or(Failure::Busy)
    }

    fn sees(&self, record: &Record) -> bool {
        !record.is_expired() && self.operator.scopes().includes(&record.identity.scope)
    }

    /// Reads a record. A record of another scope does not exist for the operator.
    pub(super) async fn record(&self, id: &RecordId) -> Result<Option<Summary>, Failure> {
        let _permit = self.permit().await?;
        let record = self.shared.idem.records().get(id).await?;
        Ok(record.filter(|it| self.sees(it)).map(Summary::of))
    }

    /// Finds a key of this scope in all operations. The records of another scope do not exist for the operator.
    pub(super) async fn find_in_all_operations(
        &self,
        key: &Key,
        scope: &Scope,
    ) -> Result<Vec<ListedRecord>, Failure> {
        if !self.operator.scopes().includes(scope) {
            return Ok(Vec::new());
        }
        let _permit = self.permit().await?;
        let records = self.shared.idem.records();
        let found = records.find_in_all_operations(key, scope).await?;
        Ok(found
            .into_iter()
            .filter(|it| self.sees(&it.record))
            .collect())
    }

    /// Reads a record with its attempts, which are in the answer without the payload.
    pub(super) async fn attempts(
        &self,
        id: &RecordId,
    ) -> Result<Option<(Summary, Attempts)>, Failure> {
        let _permit = self.permit().await?;
        let attempts = self.shared.idem.records().attempts(id).await?;
        let seen = attempts.filter(|it| self.sees(&it.record));
        Ok(seen.map(|mut attempts| {
            let summary = Summary::of(attempts.record);
            attempts.record = summary.record.clone();
            (summary, attempts)
        }))
    }

    /// Lists the saved steps of a record that the operator sees, without their results.
    pub(super) async fn steps(&self, seen: &Summary) -> Result<StepsOfRecord, Failure> {
        let _permit = self.permit().await?;
        let steps = self.shared.store.steps_of(&seen.record.id, false);
        self.bounded(steps).await
    }

    /// Reads the payloads of a record: its result, and its steps with theirs. The steps have none if theirs are too large
    /// together: stores return the payloads of all steps at once.
    pub(super) async fn read_payloads(
        &self,
        _: MayShowPayloads,
        id: &RecordId,
    ) -> Result<Option<(Summary, Option<Payload>, StepsOfRecord)>, Failure> {
        let _permit = self.permit().await?;
        let record = self.shared.idem.records().get(id).await?;
        let Some(record) = record.filter(|it| self.sees(it)) else {
            return Ok(None);
        };
        let mut steps = self.bounded(self.shared.store.steps_of(id, false)).await?;
        if steps.list.iter().map(|step| step.size).sum::<u64>() <= MAX_STEP_BYTES {
            steps = self.bounded(self.shared.store.steps_of(id, true)).await?;
        }
        let payload = record.payload.clone();
        Ok(Some((Summary::of(record), payload, steps)))
    }

    async fn bounded<T>(
        &self,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        let limit = self.shared.idem.policy().store_timeout;
        let read = tokio::time::timeout(limit, read).await;
        Ok(read.map_err(|_| Failure::Slow)?.map_err(Error::from)?)
    }

    /// Returns true if an optional index exists; `None` for a store without indexes.
    pub(super) async fn index(&self, index: OptionalIndex) -> Result<Option<bool>, Failure> {
        let _permit = self.permit().await?;
        let state = self.bounded(self.shared.store.index(index)).await?;
        Ok(state.map(|it| it.exists))
    }

    /// Returns true if the operator may know how many records there are of the scope of this filter.
    fn may_search(&self, filter: &Filter) -> bool {
        let scope = filter.scope.as_ref();
        scope.is_none_or(|it| self.operator.scopes().includes(it.scope()))
    }

    /// Reads a page of the store, without the records that the operator does not see. Nothing is read of a scope that the
    /// operator does not see: the time would tell how many records it has.
    pub(super) async fn page(
        &self,
        filter: &Filter,
        order: Option<AgeOrder>,
        request: &PageRequest,
    ) -> Result<Page, Failure> {
        if !self.may_search(filter) {
            return Ok(Page {
                records: Vec::new(),
                unreadable: Vec::new(),
                next: None,
            });
        }
        let mut page = match order {
            None => self.shared.idem.records().list(filter, request).await?,
            Some(order) => {
                let page = self.shared.store.list_by_age(filter, order, request);
                let page = self.bounded(page).await;
                page.map_err(|error| match error {
                    Failure::Slow => Failure::SlowOrder,
                    error => error,
                })?
            }
        };
        page.records.retain(|it| self.sees(&it.record));
        if !self.sees_all() {
            page.unreadable.clear();
        }
        Ok(page)
    }

    /// Reads a page as [`page`](Self::page) does, as one of the reads that may run at the same time.
    pub(super) async fn next_page(
        &self,
        filter: &Filter,
        order: Option<AgeOrder>,
        request: &PageRequest,
    ) -> Result<Page, Failure> {
        let _permit = self.permit().await?;
        self.page(filter, order, request).await
    }

    /// Lists records that match, in the scopes of the operator. The page may be short, even empty, while more follow. The
    /// name of the list is part of its positions, so a list with another filter does not take them.
    pub(super) async fn records(
        &self,
        list: &str,
        filter: &Filter,
        order: Option<AgeOrder>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing<ListedRecord>, Failure> {
        let mut pages = self.pages(list, after, limit)?;
        let _permit = self.permit().await?;
        while let Some(request) = pages.next_request() {
            let page = self.page(filter, order, &request).await?;
            pages.add(page.records.into_iter(), page.unreadable, page.next);
        }
        Ok(self.listing(pages))
    }

    /// Reads the audit of manual changes, in the scopes of the operator. A purge is not limited to a scope, so only those
    /// see it who see all scopes.
    pub(super) async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing<AuditEntry>, Failure> {
        let mut pages = self.pages("audit", after, limit)?;
        let _permit = self.permit().await?;
        let records = self.shared.idem.records();
        let scopes = self.operator.scopes();
        while let Some(request) = pages.next_request() {
            let page = records.audit(filter, &request).await?;
            let seen = page.entries.into_iter().filter(|it| {
                let identity = it.record().and_then(|it| it.identity.as_ref());
                match identity {
                    Some(identity) => scopes.includes(&identity.scope),
                    None => self.sees_all(),
                }
            });
            pages.add(seen, page.unreadable, page.next);
        }
        Ok(self.listing(pages))
    }

    fn pages<'a, T>(
        &self,
        list: &'a str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Pages<'a, T>, Failure> {
        let trail = self.trail(list, after)?;
        Ok(Pages {
            list,
            limit,
            items: Vec::new(),
            unreadable: Vec::new(),
            position: trail.position(),
            trail,
            left: MAX_PAGES,
            began: Instant::now(),
            patience: self.shared.idem.policy().store_timeout,
        })
    }

    fn listing<T>(&self, pages: Pages<'_, T>) -> Listing<T> {
        let next = pages.position.as_ref();
        Listing {
            turns: self.turns(pages.list, &pages.trail, next),
            share: next.filter(|_| self.sees_all()).and_then(share_before),
            items: pages.items,
            unreadable: match self.sees_all() {
                true => pages.unreadable,
                false => Vec::new(),
            },
        }
    }

    /// Id of the record of a key, whether the record exists or not.
    pub(super) fn id_of(operation: &str, key: &str, scope: &Scope) -> Result<RecordId, String> {
        let key = key.to_key().map_err(|it| it.to_string())?;
        let operation = Operation::new(operation.to_owned());
        Ok(RecordId::of(&Identity {
            scope: scope.to_scope().map_err(|it| it.to_string())?,
            operation: operation.map_err(|it| it.to_string())?,
            key,
        }))
    }

    /// Resolves a record as it was shown, with an entry of the audit. `None` if the operator sees no such record.
    pub(super) async fn resolve(
        &self,
        _: MayChange,
        observed: &Observation,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Option<Resolved>, Failure> {
        let change = ManualChange::new(self.name(), reason)
            .map_err(|error| Failure::Input(error.to_string()))?;
        let records = self.shared.idem.records();
        let found = records.get(&observed.id).await?;
        // The scope of an id never changes, so reading it first is no race.
        match found {
            Some(record) if !self.operator.scopes().includes(&record.identity.scope) => Ok(None),
            _ => Ok(Some(
                records.by(&change).resolve(observed, resolution).await?,
            )),
        }
    }

    /// Largest result that the store takes, in bytes.
    pub(super) fn max_result_bytes(&self) -> usize {
        self.shared.idem.policy().max_result_bytes
    }
}

/// Part of the ids before a position in the order of ids. An id is a hash, so as many records are before it. `None` for a
/// position in another order.
fn share_before(position: &Cursor) -> Option<f64> {
    /// Digits of an id.
    const DIGITS: usize = 64;
    let text = position.as_str();
    let is_id = text.len() == DIGITS && text.bytes().all(|it| it.is_ascii_hexdigit());
    let first = u32::from_str_radix(text.get(..8)?, 16).ok()?;
    is_id.then(|| f64::from(first) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_in_the_order_of_ids_tells_what_was_read() {
        let share = |text: &str| share_before(&Cursor::new(text));
        assert_eq!(share(&"0".repeat(64)), Some(0.0));
        assert_eq!(share(&"f".repeat(64)), Some(1.0));
        let half = share(&format!("80{}", "0".repeat(62))).unwrap();
        assert!((half - 0.5).abs() < 0.001, "{half}");
        for other in ["", "17", "3137-80", &"0".repeat(63), &"-".repeat(64)] {
            assert_eq!(share(other), None, "{other}");
        }
    }

    #[test]
    fn the_path_of_the_mount_is_what_the_router_cut_off() {
        let base = |whole: &'static str, inner: &str| {
            let mut request = http::Request::builder().uri(inner).body(()).unwrap();
            let whole = OriginalUri(http::Uri::from_static(whole));
            request.extensions_mut().insert(whole);
            base_of(&request.into_parts().0, None)
        };
        assert_eq!(base("/idem/records/1", "/records/1"), "/idem");
        assert_eq!(base("/idem", "/"), "/idem");
        assert_eq!(base("/stuck", "/stuck"), "");
        assert_eq!(base("/", "/"), "");
        assert_eq!(base("//evil.example/stuck", "/stuck"), "");
        assert_eq!(base("/\\evil.example/stuck", "/stuck"), "");
    }
}
