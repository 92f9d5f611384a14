// Shows one comparison at a time and sends the answer. Text is inserted through textContent only, never as HTML.
(function () {
  "use strict";
  const token = document.querySelector("meta[name=label-token]").content;
  const find = (selector) => document.querySelector(selector);
  const main = find("#main"), status = find("#status"), help = find("#help"), figures = find("#figures");
  const KEYS = {
    "1": "1", ArrowLeft: "1", "2": "2", ArrowRight: "2", "=": "tie", "0": "tie", s: "skip", S: "skip",
  };
  const SAID = { "1": "response 1 is better", "2": "response 2 is better", tie: "a tie", skip: "skipped" };
  // Key presses in the first 0.3 s are ignored, so that a double press does not answer two comparisons.
  const LEAST_MS = 300;
  const LOOK_MS = 2000; // time between two looks for new comparisons

  let state = null;
  let busy = true;
  let unsaved = null; // the failed request, which a retry sends again unchanged
  let shownAt = 0, hiddenAt = null;

  async function call(path, body) {
    const headers = { "x-label-token": token };
    const options = { headers };
    if (body) {
      headers["content-type"] = "application/json";
      options.method = "POST";
      options.body = JSON.stringify(body);
    }
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("the server does not answer; if it was stopped, start it again and open the URL that it prints");
    }
    if (response.status === 404) throw new Error("the server was restarted; open the URL that it printed");
    const answer = await response.json().catch(() => ({ error: `the server failed (status ${response.status})` }));
    if (!response.ok && !answer.state) throw new Error(answer.error);
    return answer;
  }

  function say(text, kind) {
    status.textContent = text;
    status.className = kind || "";
  }

  function add(parent, tag, text, kind) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    parent.append(node);
    return node;
  }

  function addTurn(parent, turn, named) {
    const node = add(parent, "div", undefined, "turn");
    if (named) add(node, "span", turn.speaker, "speaker");
    if (turn.text.trim()) add(node, "span", turn.text);
    else if (!turn.calls) add(node, "span", "(empty)", "none");
    if (turn.calls) add(node, "span", turn.calls, "calls");
  }

  function show(next) {
    const before = state && state.item && state.item.id;
    state = next;
    const { item, progress } = state;
    const answered = progress.labelled + progress.skipped;
    find("#progress").max = progress.total;
    find("#progress").value = answered;
    const pace = progress.median_seconds === null ? "" : ` · ${progress.median_seconds.toFixed(1)} s each (median)`;
    find("#count").textContent = `${answered} of ${progress.total} · ${progress.left} left${pace}`;
    find("#item").hidden = !item;
    find("#done").hidden = Boolean(item) || state.grows;
    find("#waiting").hidden = Boolean(item) || !state.grows;
    find("#totals").textContent =
      `${progress.labelled} labels, ${progress.ties} of them ties; ${progress.skipped} skipped.`;
    figures.hidden = !state.offers_figures;
    if (figures.open && !figures.hidden) showFigures();
    for (const reply of document.querySelectorAll(".reply")) reply.classList.remove("chosen");
    if (item && item.id !== before) {
      find("#prompt").replaceChildren();
      for (const turn of item.prompt) addTurn(find("#prompt"), turn, true);
      item.replies.forEach((reply, place) => {
        const body = find(`[data-reply="${place + 1}"] > div`);
        body.replaceChildren();
        addTurn(body, reply, false);
      });
      scrollTo(0, 0);
      find("#prompt").focus({ preventScroll: true });
    }
    shownAt = performance.now();
    hiddenAt = document.hidden ? shownAt : null;
    main.dataset.item = item ? item.id : "";
    main.dataset.answered = answered;
    enable();
    if (!item && state.grows) setTimeout(look, LOOK_MS);
  }

  // Ask for comparisons that training has added. An answer or an undo in the meantime shows its own state.
  async function look() {
    if (busy || unsaved !== null || state.item) return;
    const before = state;
    let next = state;
    try {
      next = await call("/state");
    } catch (error) {
      say(error.message, "failed");
    }
    if (!busy && state === before) show(next);
  }

  function enable() {
    const blocked = busy || unsaved !== null;
    for (const button of document.querySelectorAll("[data-choice]")) button.disabled = blocked || !state.item;
    find("[data-undo]").disabled = blocked || state.last === null;
  }

  async function send(request) {
    busy = true;
    unsaved = null;
    enable();
    say("saving …");
    try {
      const answer = await call(request.path, request.body);
      busy = false;
      show(answer.state);
      say(answer.error ? `Not saved: ${answer.error}` : `Saved: ${request.said}`, answer.error ? "failed" : "saved");
    } catch (error) {
      busy = false;
      unsaved = request;
      enable();
      say(`Not saved: ${error.message}`, "failed");
      const retry = add(status, "button", "Retry (r)");
      retry.type = "button";
      retry.id = "retry";
      retry.addEventListener("click", () => send(request));
    }
  }

  const blocked = () => busy || unsaved !== null || performance.now() - shownAt < LEAST_MS;

  function choose(choice) {
    if (blocked() || !state.item) return;
    const reply = find(`[data-reply="${choice}"]`);
    if (reply) reply.classList.add("chosen");
    const seconds = (performance.now() - shownAt) / 1000;
    const body = { event: crypto.randomUUID(), item: state.item.id, choice, seconds };
    send({ path: "/answer", body, said: SAID[choice] });
  }

  function undo() {
    if (blocked() || state.last === null) return;
    send({ path: "/undo", body: { event: crypto.randomUUID(), undoes: state.last }, said: "the last answer is undone" });
  }

  function addTable(parent, title, columns, rows) {
    if (!rows.length) return;
    add(parent, "h2", title);
    const table = add(add(parent, "div", undefined, "wide"), "table");
    const head = add(add(table, "thead"), "tr");
    for (const column of columns) add(head, "th", column).scope = "col";
    const body = add(table, "tbody");
    for (const row of rows) {
      const line = add(body, "tr");
      for (const value of row) add(line, "td", String(value));
    }
  }

  async function showFigures() {
    let found;
    try {
      found = await call("/figures");
    } catch (error) {
      find("#tables").textContent = error.message;
      return;
    }
    const tables = find("#tables");
    tables.replaceChildren();
    addTable(
      tables, "Same answer", ["who", "with ties", "Cohen’s κ", "without ties", "n"],
      found.agreement.map((row) => [row.who, row.same, row.kappa, row.decided, row.n]),
    );
    addTable(
      tables, "Labels for the side that the judge prefers, by its confidence", ["judge’s confidence", "labels", "n"],
      found.calibration.map((row) => [row.confidence, row.agreement, row.n]),
    );
    addTable(
      tables, "Response 1 chosen: 0.5 without position bias, because the order is random", ["who", "fraction", "n"],
      found.left.map((row) => [row.annotator, row.share, row.n]),
    );
    add(tables, "p", "With 95 % intervals; labels of one prompt count as one cluster.", "soft small");
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const choice = KEYS[event.key];
    const isRetry = event.key.toLowerCase() === "r" && unsaved !== null;
    const isUndo = event.key.toLowerCase() === "u";
    if (!choice && !isRetry && !isUndo && event.key !== "?") return;
    event.preventDefault();
    if (event.repeat) return; // holding a key down gives one answer
    if (choice) choose(choice);
    else if (isRetry) send(unsaved);
    else if (isUndo) undo();
    else help.showModal();
  });
  for (const button of document.querySelectorAll("[data-choice]"))
    button.addEventListener("click", () => choose(button.dataset.choice));
  find("[data-undo]").addEventListener("click", undo);
  find("[data-help]").addEventListener("click", () => help.showModal());
  figures.addEventListener("toggle", () => { if (figures.open) showFigures(); });
  // Time in the background does not count as time spent on the answer.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hiddenAt = performance.now();
    else if (hiddenAt !== null) {
      shownAt += performance.now() - hiddenAt;
      hiddenAt = null;
    }
  });

  function begin(first) {
    busy = false;
    show(first);
    if (state.item) say("1 and 2 choose, = is a tie; ? lists all keys");
  }
  call("/state").then(begin, (error) => say(error.message, "failed"));
})();
