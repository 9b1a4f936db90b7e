//! The clients with which the tests send requests: private ones, or the ones that the caller names.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::packages;

/// A private environment of Python in the target directory.
pub(crate) struct Environment {
    /// Variable that names the interpreter.
    pub(crate) variable: &'static str,
    /// Folder in the target directory.
    folder: &'static str,
    /// Packages and their versions.
    requirements: &'static str,
    /// What a contributor can do without the packages.
    otherwise: &'static str,
}

/// Python's clients, for the tests.
pub(crate) const CLIENTS: Environment = Environment {
    variable: "IDEM_TEST_PYTHON",
    folder: "clients",
    requirements: "tests/clients/requirements.txt",
    otherwise: "run `cargo xtask test --embedded`",
};

/// Python's libraries for idempotency, for the benchmark that compares with them.
pub(crate) const PEERS: Environment = Environment {
    variable: "IDEM_BENCH_PYTHON",
    folder: "peers-python",
    requirements: "tests/peers/requirements.txt",
    otherwise: "name the other parts of `cargo xtask bench`",
};

/// Installs the packages of an environment, in the versions of its requirements, and returns its interpreter. If the
/// variable is set, nothing is installed, and its value is returned.
pub(crate) fn python(sh: &Shell, environment: &Environment) -> anyhow::Result<String> {
    let Environment {
        variable,
        folder,
        requirements,
        otherwise,
    } = environment;
    if let Ok(python) = std::env::var(variable) {
        eprintln!("{variable} is set: nothing is installed for it");
        return Ok(python);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    // Absolute, because a test runs in the directory of its package.
    let environment = sh.current_dir().join(target).join(folder);
    let python = environment.join("bin/python3");
    if !runs(sh, &python, &["-m", "pip", "--version"]) {
        let base = with_venv(sh)?;
        cmd!(sh, "{base} -m venv --clear {environment}")
            .quiet()
            .run()?;
    }
    // Makes no request if all of them are installed.
    cmd!(
        sh,
        "{python} -m pip install --quiet --disable-pip-version-check --requirement {requirements}"
    )
    .quiet()
    .run()
    .with_context(|| {
        format!(
            "pip cannot install {requirements}: set {variable} to a Python that has these packages, or {otherwise}"
        )
    })?;
    let python = python.into_os_string().into_string();
    python
        .ok()
        .context("the path of the target directory is no Unicode")
}

/// Returns a Python that can create environments. Debian has the module for that in a separate package.
fn with_venv(sh: &Shell) -> anyhow::Result<&'static Path> {
    // The first Python on `PATH` may not come from a package.
    let find = || {
        let candidates = ["python3", "/usr/bin/python3"];
        let mut candidates = candidates.into_iter().map(Path::new);
        candidates.find(|it| runs(sh, it, &["-c", "import ensurepip, venv"]))
    };
    packages::install(sh, || match find() {
        Some(_) => Vec::new(),
        None => vec!["python3-venv"],
    })?;
    find().context("the package python3-venv brought no Python that makes environments")
}

fn runs(sh: &Shell, program: &Path, arguments: &[&str]) -> bool {
    cmd!(sh, "{program} {arguments...}")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok()
}
