//! Runs a target under libFuzzer, if it was compiled for it; otherwise moves inputs between `corpus` and a folder.
//!
//! `cargo xtask prove --fuzz` compiles and runs it. The target is in `IDEM_FUZZ_TARGET`, the arguments are libFuzzer's.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    use std::sync::LazyLock;

    use idem_fuzz::Target;

    static TARGET: LazyLock<&Target> = LazyLock::new(|| {
        let name = std::env::var("IDEM_FUZZ_TARGET").expect("IDEM_FUZZ_TARGET names a target");
        idem_fuzz::target(&name).expect("a known target")
    });
    (TARGET.run)(input);
});

#[cfg(not(fuzzing))]
fn main() -> anyhow::Result<()> {
    use std::path::Path;

    use idem_fuzz::{TARGETS, corpus};

    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["list"] => TARGETS.iter().for_each(|it| println!("{}", it.name)),
        ["unpack", name, folder] => corpus::unpack(name, Path::new(folder))?,
        ["pack", name, folder] => {
            let added = corpus::pack(name, Path::new(folder))?;
            println!("{name}: {added} more inputs");
        }
        ["run", name, file] => {
            let target = idem_fuzz::target(name);
            let target = target.ok_or_else(|| anyhow::anyhow!("no target {name:?}"))?;
            (target.run)(&std::fs::read(file)?);
        }
        _ => anyhow::bail!(
            "usage: idem-fuzz list | unpack TARGET FOLDER | pack TARGET FOLDER | run TARGET FILE"
        ),
    }
    Ok(())
}
