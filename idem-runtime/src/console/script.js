// Reads a live page again while it is visible and nobody works on a form. Every page works without this script.
"use strict";
const PAUSE = 5000;

function isBusy() {
  const main = document.querySelector("main");
  if (main.querySelector("details[open] form")) return true;
  if (document.activeElement && document.activeElement.closest("main form")) return true;
  return [...main.querySelectorAll("input:not([type=hidden]), textarea")].some((it) => it.value !== it.defaultValue);
}

async function refresh() {
  if (document.visibilityState !== "visible" || isBusy()) return;
  const response = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
  if (!response.ok) return;
  const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main[data-live]");
  if (next && !isBusy()) {
    document.querySelector("main").replaceWith(document.adoptNode(next));
    document.body.dataset.refreshes = Number(document.body.dataset.refreshes || 0) + 1;
  }
}

async function run() {
  try {
    await refresh();
  } catch {
    // The server is away. The page stays, and the next try may succeed.
  }
  setTimeout(run, PAUSE);
}

if (document.querySelector("main[data-live]")) setTimeout(run, PAUSE);
