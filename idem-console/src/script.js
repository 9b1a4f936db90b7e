// Shows times in the zone of the browser, and reads a live page again while it is visible. Every page works without this
// script.
//
// Only what differs is changed, so opened details, the focus and the selection stay. While somebody works on a form, the page
// is read, to see whether the server is there, and not changed: a form belongs to the record as it was shown.
"use strict";
const PAUSE = 5000;
const PATIENCE = 15000;
let shownAt = new Date();

function isBusy() {
  const main = document.querySelector("main");
  if (main.querySelector("details[open] form")) return true;
  if (document.activeElement && document.activeElement.closest("main form")) return true;
  return [...main.querySelectorAll("input:not([type=hidden]), textarea")].some((it) => it.value !== it.defaultValue);
}

// Says that the page is old, and why. An empty reason takes the notice away.
function tell(reason) {
  let notice = document.getElementById("stale");
  if (!reason) {
    if (notice) notice.remove();
    return;
  }
  if (!notice) {
    notice = document.createElement("p");
    notice.id = "stale";
    notice.className = "notice";
    notice.setAttribute("role", "alert");
    document.querySelector("main").before(notice);
  }
  const text = `This page is as of ${shownAt.toLocaleTimeString()}, and all ages in it are older by now: ${reason}.`;
  if (notice.textContent !== text) notice.textContent = text;
}

function keyOf(node) {
  return (node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key)) || null;
}

// The child that becomes the next one: the child with its key, or the first one of its kind without a key.
function counterpart(next, rest) {
  const key = keyOf(next);
  return rest.find((it) => it.nodeName === next.nodeName && keyOf(it) === key);
}

function change(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  // Whether details are open is up to the reader.
  const isOpen = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !isOpen(name)) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value && !isOpen(name)) old.setAttribute(name, value);
  }
  const rest = [...old.childNodes];
  let place = old.firstChild;
  for (const child of [...next.childNodes]) {
    const same = counterpart(child, rest);
    if (same) {
      rest.splice(rest.indexOf(same), 1);
      change(same, child);
    }
    const node = same || document.importNode(child, true);
    if (node === place) place = place.nextSibling;
    else old.insertBefore(node, place);
  }
  rest.forEach((it) => it.remove());
}

// Changes the page, and gives focus and selection back: an element that is moved loses both.
function show(next) {
  const main = document.querySelector("main");
  const focused = document.activeElement;
  const selection = getSelection();
  const { anchorNode, anchorOffset, focusNode, focusOffset, isCollapsed } = selection;
  change(main, next);
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  if (isCollapsed || !main.contains(anchorNode) || !main.contains(focusNode)) return;
  const within = (node, offset) => Math.min(offset, (node.nodeValue ?? node.childNodes).length);
  selection.setBaseAndExtent(anchorNode, within(anchorNode, anchorOffset), focusNode, within(focusNode, focusOffset));
}

// Writes times as the reader's clock shows them. The time in UTC is in the title.
function localize(root) {
  const two = (number) => String(number).padStart(2, "0");
  for (const it of root.querySelectorAll("time[datetime]")) {
    const at = new Date(it.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const ahead = -at.getTimezoneOffset();
    const zone = `${ahead < 0 ? "\u2212" : "+"}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
    const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    if (ahead === 0) continue;
    it.title = it.textContent;
    it.textContent = `${date} ${time} ${zone}`;
  }
}

async function refresh() {
  if (document.visibilityState !== "visible") return;
  let response;
  try {
    response = await fetch(location.href, {
      credentials: "same-origin",
      redirect: "manual",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch {
    tell("the server does not answer");
    return;
  }
  if (response.type === "opaqueredirect") {
    tell("the login has ended, load the page again");
    return;
  }
  if (!response.ok) {
    tell(`the server answers ${response.status}`);
    return;
  }
  const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main[data-live]");
  if (!next) {
    tell("the server answers with another page, load it again");
    return;
  }
  tell("");
  if (isBusy()) return;
  localize(next);
  show(next);
  shownAt = new Date();
  document.body.dataset.refreshes = Number(document.body.dataset.refreshes || 0) + 1;
}

async function run() {
  try {
    await refresh();
  } catch {
    // The answer broke off.
    tell("the server does not answer");
  }
  setTimeout(run, PAUSE);
}

localize(document);
if (document.querySelector("main[data-live]")) setTimeout(run, PAUSE);
