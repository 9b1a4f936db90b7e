//! A local implementation of the interface between AWS Lambda and the programs that it runs, and such a program.
//!
//! Lambda starts the program when there is an event and no idle process. The program asks for the next invocation over
//! HTTP, and sends the answer. An invocation has a deadline, after which Lambda kills the process. This module does the
//! same, so that a program with the real `lambda_runtime` runs on this machine.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// End of an invocation.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The program has answered.
    Response(Value),
    /// The program has reported an error. For an event source, the whole batch has failed.
    Error(Value),
    /// The deadline has passed, or the process has ended, without an answer. The process is gone.
    Killed,
}

/// Invocation that waits for the process.
#[derive(Debug)]
struct Invocation {
    id: String,
    event: Value,
    deadline: SystemTime,
}

/// Messages of the process.
#[derive(Debug)]
enum Message {
    Answer(String, Answer),
    /// The process could not start.
    InitError(Value),
}

#[derive(Debug)]
struct Shared {
    invocations: Mutex<mpsc::UnboundedReceiver<Invocation>>,
    messages: mpsc::UnboundedSender<Message>,
}

/// A function of Lambda: a program that is started when there is an event, and killed when its time is over.
#[derive(Debug)]
pub struct Function {
    arguments: Vec<String>,
    time_limit: Duration,
    process: Option<Process>,
    invoked: u32,
}

/// A running program, and the interface that it calls.
#[derive(Debug)]
struct Process {
    child: Child,
    server: JoinHandle<()>,
    invocations: mpsc::UnboundedSender<Invocation>,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Function {
    /// Creates a function whose program is this one, with these arguments. No process is started yet.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a str>, time_limit: Duration) -> Self {
        Self {
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            time_limit,
            process: None,
            invoked: 0,
        }
    }

    /// Invokes the function. Starts a process if none is idle.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or it reports that it cannot begin.
    pub async fn invoke(&mut self, event: Value) -> anyhow::Result<Answer> {
        self.invoked += 1;
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Process::start(&self.arguments).await?,
        };
        let id = format!("invocation-{}", self.invoked);
        let ends_at = Instant::now() + self.time_limit;
        process.invocations.send(Invocation {
            id: id.clone(),
            event,
            deadline: SystemTime::now() + self.time_limit,
        })?;
        loop {
            let message = tokio::select! {
                biased;
                message = timeout_at(ends_at, process.messages.recv()) => message.ok().flatten(),
                _ = process.child.wait() => None,
            };
            match message {
                Some(Message::Answer(of, answer)) if of == id => {
                    self.process = Some(process);
                    return Ok(answer);
                }
                // An answer of an earlier invocation: too late.
                Some(Message::Answer(..)) => {}
                Some(Message::InitError(error)) => anyhow::bail!("the program failed: {error}"),
                None => {
                    process.kill().await?;
                    return Ok(Answer::Killed);
                }
            }
        }
    }

    /// Ends the idle process, as Lambda does some time after the last event.
    ///
    /// # Errors
    ///
    /// The process cannot be killed.
    pub async fn end(&mut self) -> anyhow::Result<()> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }
}

impl Process {
    async fn start(arguments: &[String]) -> anyhow::Result<Self> {
        let (invocations, waiting) = mpsc::unbounded_channel();
        let (sender, messages) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            invocations: Mutex::new(waiting),
            messages: sender,
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            // Serves until the task is aborted.
            let _ = axum::serve(listener, interface(shared)).await;
        });
        Ok(Self {
            child: start_program(arguments, address)?,
            server,
            invocations,
            messages,
        })
    }

    async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill the process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn start_program(arguments: &[String], interface: SocketAddr) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .env("AWS_LAMBDA_RUNTIME_API", interface.to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "deposits")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
        // `lambda_http` would put the stage of API Gateway in front of the path.
        .env("AWS_LAMBDA_HTTP_IGNORE_STAGE_IN_PATH", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the program of the function")
}

/// The interface: <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>.
fn interface(shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/invocation/next", get(next))
        .route("/invocation/{id}/response", post(response))
        .route("/invocation/{id}/error", post(error))
        .route("/init/error", post(init_error))
        .with_state(shared);
    Router::new().nest("/2018-06-01/runtime", routes)
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let invocation = shared.invocations.lock().await.recv().await;
    let Some(invocation) = invocation else {
        return StatusCode::GONE.into_response();
    };
    let since = invocation.deadline.duration_since(SystemTime::UNIX_EPOCH);
    let deadline = since.unwrap_or_default().as_millis().to_string();
    let function = "arn:aws:lambda:eu-west-1:123456789012:function:deposits";
    let headers = [
        ("lambda-runtime-aws-request-id", invocation.id),
        ("lambda-runtime-deadline-ms", deadline),
        ("lambda-runtime-invoked-function-arn", function.to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    (headers, invocation.event.to_string()).into_response()
}

async fn response(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    shared.pass(&body, |value| Message::Answer(id, Answer::Response(value)))
}

async fn error(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    shared.pass(&body, |value| Message::Answer(id, Answer::Error(value)))
}

async fn init_error(State(shared): State<Arc<Shared>>, body: Bytes) -> StatusCode {
    shared.pass(&body, Message::InitError)
}

impl Shared {
    fn pass(&self, body: &[u8], message: impl FnOnce(Value) -> Message) -> StatusCode {
        let Ok(value) = serde_json::from_slice(body) else {
            return StatusCode::BAD_REQUEST;
        };
        match self.messages.send(message(value)) {
            Ok(()) => StatusCode::ACCEPTED,
            Err(_) => StatusCode::GONE,
        }
    }
}
