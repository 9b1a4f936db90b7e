//! `idem serve`: the page of `idem-console`, for one operator on this machine.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::{Form, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::get;
use idem_console::{Console, Operator, Refusal, Scopes, is_for_host, is_same_origin};
use idem_runtime::{Idem, Key, Scope};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::End;
use crate::arguments::Serve;
use crate::input::user_of_host;
use crate::stdout::{self, outln};
use crate::target::Connection;

/// Number of wrong codes after which no code is accepted.
const MAX_WRONG_CODES: usize = 20;
/// Path of the login page.
const LOGIN_PATH: &str = "/login";
/// Name of the cookie.
const COOKIE: &str = "idem_session";
/// The login page, with places for the path of the style sheet and for a notice.
const LOGIN: &str = include_str!("serve/login.html");
/// Headers of the login page. The console sets its own.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Secrets of this run.
struct Session {
    /// Code that the terminal shows.
    code: String,
    /// Path of the page, and of the cookie. Browsers send a cookie to all ports of a host, and other users of this machine may
    /// listen on them. They do not know this path, and only who has entered the code gets to know it.
    path: String,
    /// Value of the cookie.
    cookie: String,
    /// Hosts for which browsers may ask, without ports: a forwarded port may have another number. Empty: all are accepted.
    hosts: Vec<String>,
    /// Number of wrong codes that are left.
    tries: tokio::sync::Semaphore,
}

pub(crate) async fn serve(connection: &Connection, serve: &Serve) -> anyhow::Result<End> {
    ensure!(
        serve.listen.is_loopback() || serve.allow_remote,
        "{} can be reached from other machines, without encryption: pass --allow-remote if a proxy or a firewall \
         protects it",
        serve.listen
    );
    let listener = TcpListener::bind((serve.listen, serve.port)).await;
    let listener = match listener {
        Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
            "port {} is in use: choose another one with --port, or 0 for any free port",
            serve.port
        ),
        listener => listener?,
    };
    let address = listener.local_addr()?;
    let session = Arc::new(Session {
        code: code(),
        path: format!("/{}", Key::generate_v4().as_str()),
        cookie: Key::generate_v4().as_str().to_owned(),
        hosts: hosts(address.ip()),
        tries: tokio::sync::Semaphore::new(MAX_WRONG_CODES),
    });
    let app = app(connection, serve, &session)?;
    outln!("http://{address}/   (press Ctrl-C to stop)");
    outln!("code: {}", session.code);
    stdout::flush().context("nobody can read the address and the code")?;
    let stop = async {
        // Without a handler for the signal, the process ends by it.
        let _ = tokio::signal::ctrl_c().await;
    };
    tokio::select! {
        served = axum::serve(listener, app) => served.context("the page is no longer served")?,
        () = stop => {}
    }
    Ok(End::Done)
}

fn app(connection: &Connection, serve: &Serve, session: &Arc<Session>) -> anyhow::Result<Router> {
    let operator = operator(serve)?;
    let guard = {
        let session = Arc::clone(session);
        move |request: &Parts| match is_known(&session, &request.headers) {
            true => Ok(operator.clone()),
            false => Err(Refusal::new(Redirect::to(LOGIN_PATH))),
        }
    };
    let idem = Idem::new(Arc::clone(&connection.store));
    let mut console = Console::new(&idem, guard).title("idem");
    if connection.database.is_some() {
        let outbox = crate::outbox::open(connection, serve.outbox_table.as_deref())?;
        console = console.outbox(&outbox);
    }
    Ok(Router::new()
        .route("/", get(to_login))
        .route(LOGIN_PATH, get(login).post(enter))
        .with_state(Arc::clone(session))
        // The login page must not name the path of the console.
        .merge(Console::style_router())
        .merge(console.at(&session.path))
        .fallback(to_login)
        .layer(from_fn_with_state(Arc::clone(session), check_host)))
}

/// The operator of this run, as the command line describes it.
fn operator(serve: &Serve) -> anyhow::Result<Operator> {
    let scopes = match serve.scope.is_empty() {
        true => Scopes::All,
        false => Scopes::Only(
            serve
                .scope
                .iter()
                .map(|it| Scope::from_stored(it))
                .collect(),
        ),
    };
    let actor = serve.actor.clone().map_or_else(user_of_host, Ok)?;
    let mut operator = Operator::new(actor.trim(), scopes)?;
    if !serve.read_only {
        operator = operator.may_change();
    }
    if serve.payloads {
        operator = operator.may_see_payloads();
    }
    Ok(operator)
}

/// Code of 80 random bits, in groups that are easy to copy.
fn code() -> String {
    let random = Key::generate_v4();
    // The first twelve digits are random. One later digit is the version, and one is the variant.
    let digits: String = random
        .as_str()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let digits = format!("{}{}", &digits[..12], &digits[20..28]);
    let groups: Vec<_> = digits
        .as_bytes()
        .chunks(4)
        .map(String::from_utf8_lossy)
        .collect();
    groups.join("-")
}

/// Hosts of a loopback address. With any other one, a proxy decides about names.
fn hosts(address: IpAddr) -> Vec<String> {
    if !address.is_loopback() {
        return Vec::new();
    }
    // A port that is forwarded from another machine may listen on another address there.
    let mut hosts = ["127.0.0.1", "[::1]", "localhost"]
        .map(str::to_owned)
        .to_vec();
    if let IpAddr::V4(address) = address {
        hosts.push(address.to_string());
    }
    hosts
}

/// Refuses requests for other hosts: a page of another site may have a name that leads to this machine (DNS rebinding).
async fn check_host(State(session): State<Arc<Session>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if session.hosts.is_empty() || is_for_host(&parts, &session.hosts) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let hosts = session.hosts.join(", ");
    let text =
        format!("this is not a host of the page; open it as one of {hosts}, with any port\n");
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

fn is_known(session: &Session, headers: &HeaderMap) -> bool {
    let cookies = headers.get_all(header::COOKIE).iter();
    cookies
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(';'))
        .filter_map(|it| it.trim().split_once('='))
        .filter_map(|(name, value)| (name == COOKIE).then_some(value))
        .any(|value| is_equal(value, &session.cookie))
}

/// Compares secrets by their hashes, so that the time tells nothing about them.
fn is_equal(given: &str, secret: &str) -> bool {
    Key::derive([given]) == Key::derive([secret])
}

async fn to_login() -> Redirect {
    Redirect::to(LOGIN_PATH)
}

async fn login() -> Response {
    page(StatusCode::OK, "")
}

fn page(status: StatusCode, notice: &str) -> Response {
    (status, HEADERS, Html(login_page(notice))).into_response()
}

/// The login page, with a notice if it is not empty.
fn login_page(notice: &str) -> String {
    let notice = match notice {
        "" => String::new(),
        notice => format!("<p class=\"notice\" role=\"alert\">{notice}</p>"),
    };
    LOGIN
        .replace("{style}", &Console::style_path())
        .replace("{notice}", &notice)
}

/// Form of the login page.
#[derive(Deserialize)]
struct Entered {
    code: String,
}

async fn enter(
    State(session): State<Arc<Session>>,
    request: Parts,
    Form(entered): Form<Entered>,
) -> Response {
    if !is_same_origin(&request) {
        return page(
            StatusCode::FORBIDDEN,
            "The form was sent by another site. Enter the code here.",
        );
    }
    // Taken before the comparison: after too many tries, the right code must not be accepted either.
    let Ok(this_try) = session.tries.try_acquire() else {
        return page(
            StatusCode::TOO_MANY_REQUESTS,
            "There were too many wrong codes. Start `idem serve` again.",
        );
    };
    if !is_equal(entered.code.trim(), &session.code) {
        this_try.forget();
        return page(StatusCode::UNAUTHORIZED, "This is not the code.");
    }
    let cookie = format!(
        "{COOKIE}={}; HttpOnly; SameSite=Strict; Path={}",
        session.cookie, session.path
    );
    let mut response = (HEADERS, Redirect::to(&session.path)).into_response();
    // The value is printable ASCII.
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_five_groups_and_is_new_each_time() {
        let first = code();
        assert_eq!(first.split('-').map(str::len).collect::<Vec<_>>(), [4; 5]);
        assert_ne!(first, code());
    }

    fn session() -> Arc<Session> {
        Arc::new(Session {
            code: "the-code".to_owned(),
            path: "/a-path".to_owned(),
            cookie: "secret".to_owned(),
            hosts: Vec::new(),
            tries: tokio::sync::Semaphore::new(MAX_WRONG_CODES),
        })
    }

    async fn entered(session: &Arc<Session>, site: &'static str, code: &str) -> Response {
        let request = Request::builder().header("sec-fetch-site", site);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let code = code.to_owned();
        enter(State(Arc::clone(session)), parts, Form(Entered { code })).await
    }

    #[tokio::test]
    async fn the_code_gives_a_cookie_and_other_sites_get_none() {
        let session = session();
        for site in ["cross-site", "same-site", "none"] {
            let refused = entered(&session, site, "the-code").await;
            assert_eq!(refused.status(), StatusCode::FORBIDDEN);
            assert!(!refused.headers().contains_key(header::SET_COOKIE));
        }
        let entered = entered(&session, "same-origin", " the-code ").await;
        assert_eq!(entered.status(), StatusCode::SEE_OTHER);
        let cookie = &entered.headers()[header::SET_COOKIE];
        let (cookie, rest) = cookie.to_str().unwrap().split_once(';').unwrap();
        assert_eq!(cookie, "idem_session=secret");
        assert_eq!(rest, " HttpOnly; SameSite=Strict; Path=/a-path");
        assert_eq!(entered.headers()[header::LOCATION], "/a-path");
        let knows = |cookies: &str| {
            let cookies = HeaderValue::from_str(cookies).unwrap();
            is_known(&session, &[(header::COOKIE, cookies)].into_iter().collect())
        };
        assert!(knows(cookie) && knows(&format!("a=b; {cookie}")));
        assert!(!knows("idem_session_2=secret") && !knows("idem_session=") && !knows("x"));
    }

    #[tokio::test]
    async fn after_too_many_wrong_codes_the_right_one_is_refused_too() {
        let session = session();
        for _ in 0..MAX_WRONG_CODES {
            let wrong = entered(&session, "same-origin", "a-code").await;
            assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        }
        let right = entered(&session, "same-origin", "the-code").await;
        assert_eq!(right.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!right.headers().contains_key(header::SET_COOKIE));
    }

    #[test]
    fn the_login_page_has_no_place_left_open() {
        for notice in ["", "This is not the code."] {
            let html = login_page(notice);
            assert!(
                html.contains(notice) && !html.contains(['{', '}']),
                "{html}"
            );
            assert_eq!(html.contains("alert"), !notice.is_empty());
        }
    }

    #[test]
    fn a_loopback_address_has_fixed_hosts_with_any_port() {
        let of = |address: &str, host: &str| {
            let request = Request::builder().header(header::HOST, host);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            is_for_host(&parts, &hosts(address.parse().unwrap()))
        };
        // Browsers leave the port 80 out, and a forwarded port is another one.
        for host in ["127.0.0.1", "127.0.0.1:8080", "localhost:80", "[::1]:80"] {
            assert!(of("127.0.0.1", host) && of("::1", host), "{host}");
        }
        assert!(of("127.0.0.2", "127.0.0.2:80") && !of("127.0.0.1", "127.0.0.2:80"));
        assert!(!of("127.0.0.1", "evil.example") && !of("127.0.0.1", "localhost.evil.example:80"));
        assert!(hosts("10.0.0.1".parse().unwrap()).is_empty());
    }
}
