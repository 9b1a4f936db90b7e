//! `idem serve` over HTTP, as a browser and as a hostile page see it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use idem_runtime::Idem;

use super::Place;

/// The running command.
struct Served {
    run: Child,
    address: String,
    code: String,
    /// Path of the page, once somebody has logged in.
    path: OnceLock<String>,
}

/// Response to a request.
#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|it| it.split_once(": "));
        lines.find_map(|(header, value)| header.eq_ignore_ascii_case(name).then_some(value))
    }

    /// Value of a field of a form of the page.
    fn field(&self, name: &str) -> String {
        let (_, rest) = self
            .body
            .split_once(&format!("name=\"{name}\" value=\""))
            .unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    }
}

impl Served {
    fn start(place: &Place, options: &[&str]) -> Self {
        let mut run = Command::new(env!("CARGO_BIN_EXE_idem"))
            .env("IDEM_STORE_URL", &place.url)
            .env("IDEM_ACTOR", "ann@desk")
            .args(&place.options)
            .arg("serve")
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let mut line = || lines.next().unwrap().unwrap();
        let address = line();
        let address = address.strip_prefix("http://").unwrap();
        let (address, _) = address.split_once('/').unwrap();
        let code = line().strip_prefix("code: ").unwrap().to_owned();
        Self {
            run,
            address: address.to_owned(),
            code,
            path: OnceLock::new(),
        }
    }

    /// Sends a request with these headers, and a form if there is a body.
    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        form: &[(&str, &str)],
    ) -> Response {
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        let body = body.extend_pairs(form).finish();
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if method == "POST" {
            request.push_str("Content-Type: application/x-www-form-urlencoded\r\n");
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Response {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Path of a page of the console. Only who has logged in knows it.
    fn path(&self, page: &str) -> String {
        format!("{}/{page}", self.path.get().unwrap())
    }

    /// Enters the code. Returns the cookie.
    fn log_in(&self) -> String {
        let entered = self.send("POST", "/login", &[], &[("code", &self.code)]);
        assert_eq!(entered.status, 303, "{entered:?}");
        let cookie = entered.header("set-cookie").unwrap();
        for part in ["HttpOnly", "SameSite=Strict"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        // Browsers send the cookie to all ports of the host, but only with this path.
        let path = entered.header("location").unwrap();
        assert!(path.len() > 32, "{path}");
        assert!(cookie.ends_with(&format!("Path={path}")), "{cookie}");
        self.path.get_or_init(|| path.to_owned());
        cookie.split(';').next().unwrap().to_owned()
    }

    /// Ends the command with a signal.
    fn end(mut self, signal: &str) -> ExitStatus {
        let pid = self.run.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
        self.run.wait().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

#[tokio::test]
async fn only_the_code_of_the_terminal_opens_the_page() {
    let place = Place::sqlite().await;
    place.interrupted("order-1").await;
    let served = Served::start(&place, &[]);
    for path in ["/", "/records", "/audit", "/search"] {
        let refused = served.send("GET", path, &[], &[]);
        assert_eq!(
            (refused.status, refused.header("location")),
            (303, Some("/login"))
        );
        assert!(!refused.body.contains("order-1"));
    }
    let login = served.send("GET", "/login", &[], &[]);
    assert_eq!(login.status, 200);
    assert!(!login.body.contains(&served.code));
    let (_, style) = login.body.split_once("stylesheet\" href=\"").unwrap();
    let style = style.split_once('"').unwrap().0;
    let style = served.send("GET", style, &[], &[]);
    assert!(
        style.status == 200 && style.body.contains("notice"),
        "{style:?}"
    );
    let policy = login.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    for wrong in ["", "0000-0000-0000-0000-0000", "\u{1b}"] {
        let refused = served.send("POST", "/login", &[], &[("code", wrong)]);
        assert_eq!((refused.status, refused.header("set-cookie")), (401, None));
    }
    let cookie = served.log_in();
    for text in [login.body, login.head, style.body, style.head] {
        assert!(!text.contains(&served.path("")), "{text}");
    }
    let elsewhere = served.send("GET", "/records", &[("Cookie", &cookie)], &[]);
    assert_eq!(elsewhere.status, 303);
    let page = served.send("GET", &served.path("records"), &[("Cookie", &cookie)], &[]);
    assert_eq!(page.status, 200);
    let overview = served.send("GET", &served.path(""), &[("Cookie", &cookie)], &[]);
    assert_eq!(
        overview.header("location"),
        Some(&**served.path.get().unwrap())
    );
    assert!(page.body.contains("order-1"), "{}", page.body);
    assert!(!page.body.contains(&served.code) && !page.body.contains(&cookie));
    let forged = cookie.replace(|it: char| it.is_ascii_digit(), "0");
    let refused = served.send("GET", &served.path("records"), &[("Cookie", &forged)], &[]);
    assert_eq!(refused.status, 303);
    assert_eq!(served.end("INT").code(), Some(0));
}

#[tokio::test]
async fn wrong_codes_are_limited() {
    let place = Place::sqlite().await;
    let served = Served::start(&place, &[]);
    let enter = |code: &str| served.send("POST", "/login", &[], &[("code", code)]).status;
    let wrong: Vec<_> = (0..30).map(|_| enter("wrong")).collect();
    let refused = wrong.iter().position(|status| *status == 429).unwrap();
    assert!(wrong[..refused].iter().all(|it| *it == 401), "{wrong:?}");
    assert!(wrong[refused..].iter().all(|it| *it == 429), "{wrong:?}");
}

#[tokio::test]
async fn a_change_needs_the_token_of_the_page_a_reason_and_its_own_host() {
    let place = Place::sqlite().await;
    let owner = place.interrupted("order-1").await;
    let served = Served::start(&place, &[]);
    let cookie = served.log_in();
    let path = served.path(&format!("records/{}", owner.id));
    let page = served.send("GET", &path, &[("Cookie", &cookie)], &[]);
    let (token, observed) = (page.field("token"), page.field("observed"));
    let change = format!("{path}/change");
    let form = |token: &str, reason: &str, headers: &[(&str, &str)]| {
        let form = [
            ("token", token),
            ("observed", &observed),
            ("action", "release"),
            ("reason", reason),
        ];
        let headers = [&[("Cookie", &*cookie)], headers].concat();
        served.send("POST", &change, &headers, &form)
    };
    let same = ("Sec-Fetch-Site", "same-origin");
    let origin = format!("http://{}", served.address);
    for refused in [
        form("", "asked the post", &[same]),
        form(
            &token.replace(|it: char| it.is_ascii_digit(), "0"),
            "asked the post",
            &[same],
        ),
        form(&token, "", &[same]),
        form(
            &token,
            "asked the post",
            &[("Sec-Fetch-Site", "cross-site")],
        ),
        form(
            &token,
            "asked the post",
            &[("Origin", "https://evil.example")],
        ),
        form(
            &token,
            "asked the post",
            &[("Host", "evil.example"), ("Origin", "http://evil.example")],
        ),
    ] {
        assert!((400..500).contains(&refused.status), "{refused:?}");
    }
    let rebound = served.send(
        "GET",
        &path,
        &[("Cookie", &cookie), ("Host", "evil.example")],
        &[],
    );
    assert_eq!(rebound.status, 421, "{rebound:?}");
    assert!(!rebound.body.contains("order-1") && rebound.body.contains("localhost"));
    // Browsers leave the port 80 out, and a forwarded port has another number.
    for host in ["127.0.0.1", "localhost:8000"] {
        let own = [("Cookie", &*cookie), ("Host", host)];
        assert_eq!(served.send("GET", &path, &own, &[]).status, 200);
    }
    let idem = Idem::new(place.store.clone());
    let state = async || idem.records().get(&owner.id).await.unwrap().unwrap().state;
    assert_eq!(
        state().await,
        idem_runtime::record::RecordState::Interrupted
    );
    place.idem(&["audit"]).expect(3, &["no manual changes"]);

    let made = form(&token, "asked the post", &[("Origin", &origin)]);
    assert_eq!(made.status, 303, "{made:?}");
    assert_eq!(state().await, idem_runtime::record::RecordState::Released);
    place
        .idem(&["audit"])
        .expect(0, &["ann@desk", "asked the post", "released"]);
    let ended = served.end("TERM");
    assert!(
        ended.code() == Some(0) || ended.signal() == Some(15),
        "{ended}"
    );
}

#[tokio::test]
async fn a_page_that_may_only_read_has_no_forms_of_changes() {
    let place = Place::sqlite().await;
    let owner = place.interrupted("order-1").await;
    let served = Served::start(&place, &["--read-only"]);
    let cookie = served.log_in();
    let path = served.path(&format!("records/{}", owner.id));
    let page = served.send("GET", &path, &[("Cookie", &cookie)], &[]);
    assert_eq!(page.status, 200);
    assert!(!page.body.contains("name=\"reason\""), "{}", page.body);
    place
        .idem(&["serve", "--listen", "0.0.0.0"])
        .expect_error(1, "pass --allow-remote");
}
