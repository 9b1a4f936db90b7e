//! Page for operators: an axum `Router` to mount anywhere.
//!
//! The page shows counts, stuck records, a record with its attempts, the manual changes, and the outbox. Operators
//! search by key, resolve records, and requeue or discard messages, with a reason that the audit keeps. The page is
//! HTML that works without JavaScript; a small script refreshes it.
//!
//! A console needs a [`Guard`], which says for each request who sends it. There is no default. An [`Operator`] sees only
//! the scopes that the guard allows, and may change records or see payloads only if the guard says so.
//!
//! ```
//! use axum::Router;
//! use http::StatusCode;
//! use http::request::Parts;
//! use idem_runtime::Idem;
//! use idem_console::{Console, Operator, Refusal, Scopes};
//! use idem_runtime::operator::OperatorStore;
//!
//! fn admin<S: OperatorStore>(idem: &Idem<S>) -> Router {
//!     let guard = |request: &Parts| -> Result<Operator, Refusal> {
//!         // Your authentication put the name there.
//!         let name = request.extensions.get::<String>().ok_or(StatusCode::UNAUTHORIZED)?;
//!         let operator = Operator::new(name, Scopes::All).map_err(|_| StatusCode::FORBIDDEN)?;
//!         Ok(operator.may_change())
//!     };
//!     Router::new().merge(Console::new(idem, guard).at("/idem"))
//! }
//! ```
//!
//! # Security
//!
//! - Changes are forms with a token. It is bound to the operator, the day, and the record or message. A form is refused if
//!   a browser says that another site sent it. Processes that serve one console need one [`secret`](Console::secret).
//! - The `Content-Security-Policy` allows the console's own style sheet and script, and nothing inline.
//! - URLs contain ids of records, and never keys. The search sends a key in a body. Scopes in URLs are encrypted, and so is
//!   the position at which a list continues: it may name a record that the operator does not see.
//! - An export has the records that the lists show, at most 100,000 of them, without results. A cell of a CSV file never
//!   begins with a character that a spreadsheet takes for a formula.
//! - A record outside of the operator's scopes answers 404, like one that does not exist.
//! - Counts are read at most every five seconds for all browsers together while somebody looks, and each minute for an
//!   hour after that. At most four other reads run at the same time.
//!
//! - The console answers requests for any host, unless [`allowed_hosts`](Console::allowed_hosts) lists the hosts. A guard
//!   that admits by the place in the network, without a login, needs the list: another site may lead its own name to the
//!   address of this server (DNS rebinding), and the browser of an operator then reads the page for that site.
//!
//! Serve the console over HTTPS, and limit its request rate as for every page with a login.
//!
//! # Features
//!
//! None by default. `outbox-sqlite`, `outbox-postgres` and `outbox-mysql` add `Console::outbox`, for an outbox in that
//! database.

#![cfg_attr(docsrs, feature(doc_cfg))]

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, OriginalUri};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use http::StatusCode;
use idem_runtime::Idem;
use idem_runtime::fingerprint::Secret;
use idem_runtime::operator::OperatorStore;

mod access;
mod actions;
mod assets;
mod audit;
mod bulk;
mod change;
mod counts;
mod export;
mod failure;
mod form;
mod guard;
mod layout;
mod link;
mod lists;
mod origin;
#[cfg(any(
    feature = "outbox-sqlite",
    feature = "outbox-postgres",
    feature = "outbox-mysql"
))]
mod outbox;
mod overview;
mod payload;
mod record;
mod search;
mod selection;
mod table;
mod time;
mod timeline;
mod token;

use self::access::{Settings, Shared};

pub use self::guard::{Guard, Operator, Refusal, Scopes};
pub use self::origin::{is_for_host, is_same_origin};

/// Largest form, in bytes. A result of 1 MiB of JSON may triple when a form encodes it.
const MAX_FORM: usize = 4 * 1024 * 1024;

/// Page for operators. [`router`](Self::router) makes the routes.
pub struct Console {
    idem: Idem,
    store: Arc<dyn OperatorStore>,
    guard: Box<dyn Guard>,
    secret: Secret,
    settings: Settings,
}

impl Console {
    /// Creates a console for the records of a handle. Changes go through the store of the handle, so a cache in front of it
    /// forgets what was erased.
    pub fn new<S: OperatorStore>(idem: &Idem<S>, guard: impl Guard) -> Self {
        Self {
            idem: idem.clone().erased(),
            store: idem.shared_store(),
            guard: Box::new(guard),
            secret: Secret::generate(),
            settings: Settings {
                title: "idem".to_owned(),
                base_path: None,
                allowed_hosts: None,
                outbox: None,
            },
        }
    }

    /// Title of the pages, such as the name of the service. Default: `idem`.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.settings.title = title.into();
        self
    }

    /// Secret of the tokens in forms, and of the positions and scopes in URLs. Several processes that serve one console behind a load balancer need the same one.
    /// Default: random, new in each process.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// Path under which clients see the console, without a slash at its end. Needed only behind a proxy that removes a part
    /// of the path. Default: the path under which axum nests the router.
    #[must_use]
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.settings.base_path = Some(path.into());
        self
    }

    /// Hosts under which browsers may read the console, such as `ops.example.com` or `localhost:3000`. A name without a port
    /// allows all ports. A request for another host gets 421. Default: any host.
    ///
    /// A guard that admits by the place in the network needs the list, see [Security](self#security).
    #[must_use]
    pub fn allowed_hosts<T: Into<String>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        let hosts = hosts.into_iter().map(Into::into).collect();
        self.settings.allowed_hosts = Some(hosts);
        self
    }

    /// Path of the style sheet below the console, for a login page that looks like it. The guard does not protect the style
    /// sheet. The path changes with each version.
    pub fn style_path() -> String {
        assets::style_path()
    }

    /// Makes the route of the style sheet alone, for a login page that is not below the console.
    pub fn style_router<T: Clone + Send + Sync + 'static>() -> Router<T> {
        let path = format!("/{}", assets::style_path());
        Router::new()
            .route(&path, get(assets::style))
            .layer(map_response(layout::with_headers))
    }

    /// Makes the routes of the console below this path, such as `/idem`, to merge into a router. A request for the path with
    /// a slash at its end is redirected to the path without it: below [`nest`](Router::nest), nobody answers it.
    pub fn at<T: Clone + Send + Sync + 'static>(self, path: &str) -> Router<T> {
        let path = path.trim_end_matches('/');
        if path.is_empty() {
            return self.router();
        }
        let base = self.settings.base_path.clone();
        let overview = move |OriginalUri(uri): OriginalUri| {
            std::future::ready(without_last_slash(base.as_deref(), uri.path()))
        };
        Router::new()
            .route(&format!("{path}/"), get(overview))
            .nest(path, self.router())
    }

    /// Makes the routes of the console, to nest into a router.
    pub fn router<T: Clone + Send + Sync + 'static>(self) -> Router<T> {
        let Self {
            idem,
            store,
            guard,
            secret,
            settings,
        } = self;
        let shared = Shared::new(idem, store, guard, secret, settings);
        let routes = Router::new()
            .route("/", get(overview::overview))
            .route("/records", get(lists::records))
            .route("/stuck", get(lists::stuck))
            .route("/records/select", post(lists::select_records))
            .route("/stuck/select", post(lists::select_stuck))
            .route("/records/export", get(export::records))
            .route("/stuck/export", get(export::stuck))
            .route("/bulk/preview", post(bulk::preview))
            .route("/bulk/apply", post(bulk::apply))
            .route("/audit", get(audit::audit))
            .route("/search", get(search::form).post(search::find))
            .route("/records/{id}", get(record::record))
            .route("/records/{id}/change", post(change::change))
            .route("/records/{id}/payload", get(payload::payloads))
            .route(&format!("/{}", assets::style_path()), get(assets::style))
            .route(&format!("/{}", assets::script_path()), get(assets::script));
        #[cfg(any(
            feature = "outbox-sqlite",
            feature = "outbox-postgres",
            feature = "outbox-mysql"
        ))]
        let routes = outbox::routes(routes);
        routes
            .layer(DefaultBodyLimit::max(MAX_FORM))
            .layer(map_response(layout::with_headers))
            .with_state(Arc::new(shared))
    }
}

/// Redirects to the overview.
fn without_last_slash(base: Option<&str>, path: &str) -> Response {
    let path = base.unwrap_or(path).trim_end_matches('/');
    // A browser reads two slashes as the begin of a host, and a backslash as a slash.
    match path.starts_with("//") || path.contains('\\') || path.is_empty() {
        true => StatusCode::NOT_FOUND.into_response(),
        false => Redirect::to(path).into_response(),
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("title", &self.settings.title)
            .finish_non_exhaustive()
    }
}
