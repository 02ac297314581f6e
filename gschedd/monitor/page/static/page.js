// Loads the page again when the monitor tells that something has changed. The page works without it.
"use strict";
(() => {
  const live = document.getElementById("live");
  const address = document.body.dataset.updates;
  if (!live || !address) return;
  const updated = document.getElementById("updated");
  const SLOW_MS = 15000; // without a stream of events
  const AGAIN_MS = 3000, TRIES = 20;
  let stream = null, timer = 0, soon = 0, tries = 0, paused = false, loading = false, stale = false;

  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Pause updates";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    paused ? stop() : start();
  });
  updated.after(" ", button);

  const place = (element) =>
    element.id ? `#${CSS.escape(element.id)}` :
    element.getAttribute("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : "";

  const isUsed = (part) => {
    const active = document.activeElement;
    const writes = active && part.contains(active) && /^(INPUT|TEXTAREA|SELECT|BUTTON|SUMMARY)$/.test(active.tagName);
    return writes || part.querySelector("details[open], dialog[open]");
  };

  const isBusy = () => String(getSelection()).length > 0 || isUsed(live);

  // Each page has other keys of forms that submit jobs: a form that is the same else is kept.
  const shows = (part) => part.innerHTML.replace(/name="key" value="[^"]*"/g, "");

  async function load() {
    if (loading || paused || document.hidden) { stale = true; return; }
    if (isBusy()) { stale = true; return; }
    loading = true; stale = false;
    try {
      const response = await fetch(location.href, {headers: {"X-Update": "1"}, redirect: "error"});
      if (response.status === 401) { stop(); location.reload(); return; }
      if (!response.ok) { updated.textContent = "No answer; trying again."; return; }
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      if (isBusy()) { stale = true; return; }
      const active = document.activeElement;
      const where = active && live.contains(active) ? place(active) : "";
      for (const id of ["live", "count", "trouble", "actions"]) {
        const old = document.getElementById(id), now = fresh.getElementById(id);
        if (old && now && !isUsed(old) && shows(old) !== shows(now)) old.replaceChildren(...now.childNodes);
      }
      live.toggleAttribute("data-again", fresh.getElementById("live")?.hasAttribute("data-again"));
      if (where) live.querySelector(where)?.focus({preventScroll: true});
      updated.textContent = `Updated at ${new Date().toLocaleTimeString()}.`;
    } catch {
      updated.textContent = "No answer; trying again.";
    } finally {
      loading = false;
      again();
    }
  }

  // What the head had not told yet comes soon, and without an event.
  function again() {
    clearTimeout(soon);
    if (!live.hasAttribute("data-again")) tries = 0;
    else if (tries++ < TRIES) soon = setTimeout(load, AGAIN_MS);
  }

  function start() {
    if (stream || paused || document.hidden) return;
    stream = new EventSource(address);
    stream.addEventListener("change", load);
    stream.addEventListener("error", () => {
      if (stream && stream.readyState === EventSource.CLOSED) { stop(); timer = setInterval(load, SLOW_MS); }
    });
    if (stale) load();
  }

  function stop() {
    stream?.close();
    stream = null;
    clearInterval(timer);
    timer = 0;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stop(); stale = true; } else { start(); }
  });
  addEventListener("pagehide", stop);
  start();
  again();
})();
