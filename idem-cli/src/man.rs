//! `idem man`: the manual page, written from the definition of the command line.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::End;
use crate::arguments::Arguments;
use crate::stdout;

/// Prints the page. A reader finds all commands in one page, because a text can only be searched in one.
pub(crate) fn print() -> anyhow::Result<End> {
    let page = page()?;
    stdout::write(format_args!("{page}"));
    Ok(End::Done)
}

fn page() -> io::Result<String> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone()).manual("Manual of idem");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(".SH COMMANDS\n");
    write_commands(&command, &mut page)?;
    let mut end = Vec::new();
    man.render_extra_section(&mut end)?;
    let end = String::from_utf8_lossy(&end);
    page.push_str(&without_preamble(&end).replacen(".SH EXTRA", ".SH \"EXIT STATUS\"", 1));
    Ok(page)
}

/// Writes a subsection for each command below this one.
fn write_commands(above: &Command, page: &mut String) -> io::Result<()> {
    let commands = above.get_subcommands();
    for command in commands.filter(|it| it.get_name() != "help") {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        page.push_str(&format!(".SS \"{name}\"\n"));
        let man = Man::new(own_options(command));
        let mut text = Vec::new();
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        if command.get_arguments().any(|it| !it.is_global_set()) {
            man.render_options_section(&mut text)?;
        }
        // A subsection has no headings of its own.
        for line in without_preamble(&String::from_utf8_lossy(&text)).lines() {
            let line = if line.starts_with(".SH ") {
                ".PP"
            } else {
                line
            };
            page.push_str(line);
            page.push('\n');
        }
        write_commands(command, page)?;
    }
    Ok(())
}

/// The command without the options that each command has: the section about options describes them once.
fn own_options(command: &Command) -> Command {
    command.clone().mut_args(|argument| {
        let is_of_all = argument.is_global_set() || argument.get_id() == "help";
        argument.hide(is_of_all)
    })
}

/// The text without the two lines that define how an apostrophe is printed. The page begins with them.
fn without_preamble(roff: &str) -> String {
    let is_of_preamble = |line: &&str| line.starts_with(".ie ") || line.starts_with(".el ");
    let lines = roff.lines().filter(|line| !is_of_preamble(line));
    lines.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_command_and_its_options_once() {
        let page = page().unwrap();
        for command in ["idem explain", "idem outbox requeue", "idem man"] {
            let heading = format!(".SS \"{command}\"\n");
            assert_eq!(page.matches(&heading).count(), 1, "{command}");
        }
        assert!(!page.contains("idem help"), "{page}");
        assert_eq!(page.matches("IDEM_STORE_URL").count(), 1);
        assert!(page.contains(".SH \"EXIT STATUS\"\n"));
        assert_eq!(page.matches(".ie ").count(), 1);
        let headings: Vec<_> = page.lines().filter(|it| it.starts_with(".SH ")).collect();
        assert_eq!(headings.len(), 6, "{headings:?}");
    }
}
