//! Packages of other languages: the clients with which the tests send requests, what checks pages, emulators, and the
//! libraries of a benchmark. They are private ones, or the ones that the caller names.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::packages;

/// Packages of another language in the target directory.
pub(crate) struct Environment {
    /// Variable that names Python's interpreter, or the folder in which npm has installed the packages.
    pub(crate) variable: &'static str,
    /// Folder in the target directory.
    folder: &'static str,
    /// Packages and their versions: pip's file, or the folder of npm's files.
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

/// The rules of accessibility with which the tests check pages.
pub(crate) const AXE: Environment = Environment {
    variable: "IDEM_TEST_AXE",
    folder: "axe",
    requirements: "examples/tests/page/axe",
    ..CLIENTS
};

/// Emulator of DynamoDB in npm, for the tests of its store.
pub(crate) const DYNALITE: Environment = Environment {
    variable: "IDEM_TEST_DYNALITE",
    folder: "emulators-npm",
    requirements: "idem-dynamodb/tests/emulators",
    ..CLIENTS
};

/// Emulator of DynamoDB in Python, for the same tests.
pub(crate) const MOTO: Environment = Environment {
    variable: "IDEM_TEST_MOTO",
    folder: "emulators-python",
    requirements: "idem-dynamodb/tests/emulators/requirements.txt",
    ..CLIENTS
};

/// Python's libraries for idempotency, for the benchmark that compares with them.
pub(crate) const PYTHON_PEERS: Environment = Environment {
    variable: "IDEM_BENCH_PYTHON",
    folder: "peers-python",
    requirements: "tests/peers/requirements.txt",
    otherwise: "name the other parts of `cargo xtask bench`",
};

/// npm's libraries for idempotency, for the same benchmark.
pub(crate) const NPM_PEERS: Environment = Environment {
    variable: "IDEM_BENCH_NODE_MODULES",
    folder: "peers-npm",
    requirements: "tests/peers",
    ..PYTHON_PEERS
};

impl Environment {
    /// Value of the variable, if the caller has set it. Then nothing is installed.
    fn of_caller(&self) -> Option<String> {
        let value = std::env::var(self.variable).ok()?;
        eprintln!("{} is set: nothing is installed for it", self.variable);
        Some(value)
    }

    /// Absolute path of the folder, because a test runs in the directory of its package.
    fn path(&self, sh: &Shell) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        sh.current_dir().join(target).join(self.folder)
    }
}

/// Installs the packages of an environment, in the versions of its requirements, and returns its interpreter. If the
/// variable is set, nothing is installed, and its value is returned.
pub(crate) fn python(sh: &Shell, environment: &Environment) -> anyhow::Result<String> {
    let Environment {
        variable,
        requirements,
        otherwise,
        ..
    } = environment;
    if let Some(python) = environment.of_caller() {
        return Ok(python);
    }
    let environment = environment.path(sh);
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
    text(python)
}

/// Installs the packages of an environment, in the versions of npm's lock file, and returns the folder for `NODE_PATH`. If
/// the variable is set, nothing is installed, and its value is returned.
pub(crate) fn npm(sh: &Shell, environment: &Environment) -> anyhow::Result<String> {
    let Environment {
        variable,
        requirements,
        otherwise,
        ..
    } = environment;
    if let Some(packages) = environment.of_caller() {
        return Ok(packages);
    }
    packages::install_npm(sh)?;
    let folder = environment.path(sh);
    sh.create_dir(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        sh.copy_file(Path::new(requirements).join(file), folder.join(file))?;
    }
    // Makes no request if all of them are installed. Old releases of Node.js are refused.
    cmd!(
        sh,
        "npm install --prefix {folder} --engine-strict --ignore-scripts --no-audit --no-fund --loglevel=error"
    )
    .quiet()
    .ignore_stdout()
    .run()
    .with_context(|| {
        format!(
            "npm cannot install the packages of {requirements}/package.json: set {variable} to a folder `node_modules` \
             that has them, or {otherwise}"
        )
    })?;
    text(folder.join("node_modules"))
}

fn text(path: PathBuf) -> anyhow::Result<String> {
    let text = path.into_os_string().into_string();
    text.ok()
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
