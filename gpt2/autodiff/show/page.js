"use strict";
document.documentElement.classList.add("js");
const TITLES = { forward: "forward", manual: "by hand", derived: "derived" };

for (const layer of document.querySelectorAll(".layer")) {
  const panels = [...layer.querySelectorAll("figure[data-panel]")];
  const statements = [...layer.querySelectorAll(".st[data-line], .st[data-from], .st[data-values]")];
  const graphs = [...layer.querySelectorAll(".stage .ln[data-from]")];
  const kept = layer.querySelector(".kept");
  const said = kept.querySelector("p").textContent;
  let pinned = null;

  const panelOf = (line) => line.closest("figure").dataset.panel;
  const sources = (line) =>
    panelOf(line) === "forward" ? [line.dataset.line] : (line.dataset.from || "").split(" ");
  const inPanel = (panel) => lines.filter((line) => panel.contains(line));

  /* The lines that belong to one: of a line of the forward all that come from it, of others where they come from. */
  function related(line) {
    const own = sources(line);
    const isForward = panelOf(line) === "forward";
    return statements.filter((other) => {
      if (other === line || (panelOf(other) === "forward") === isForward) return false;
      return sources(other).some((source) => source && own.includes(source));
    });
  }

  const lines = statements.filter((line) => line.dataset.values || related(line).length);

  function light(line) {
    for (const old of layer.querySelectorAll(".lit")) old.classList.remove("lit");
    if (!line) {
      kept.querySelector("p").textContent = said;
      return;
    }
    const found = related(line);
    for (const other of found) other.classList.add("lit");
    for (const node of graphs) {
      const from = node.dataset.from.split(" ");
      node.classList.toggle("lit", sources(line).some((source) => from.includes(source)));
    }
    const counts = Object.keys(TITLES).map((name) => [name, found.filter((o) => panelOf(o) === name).length]);
    const parts = counts.filter(([, n]) => n).map(([name, n]) => `${n} ${n > 1 ? "lines" : "line"} ${TITLES[name]}`);
    kept.querySelector("p").textContent = parts.length ? `Belongs to it: ${parts.join(", ")}.` : "No line belongs to it.";
  }

  function pin(line) {
    if (pinned) {
      pinned.classList.remove("pin");
      pinned.setAttribute("aria-pressed", "false");
    }
    pinned = line === pinned ? null : line;
    kept.querySelector("button").hidden = !pinned;
    kept.classList.toggle("on", Boolean(pinned));
    const cards = kept.querySelector(".three");
    cards.replaceChildren();
    light(pinned);
    if (!pinned) return;
    pinned.classList.add("pin");
    pinned.setAttribute("aria-pressed", "true");
    const shown = [pinned, ...related(pinned)];
    for (const name of Object.keys(TITLES)) {
      const here = shown.filter((line) => panelOf(line) === name);
      if (here.length) cards.append(card(TITLES[name], here));
    }
  }

  function card(title, here) {
    const made = document.createElement("div");
    made.append(Object.assign(document.createElement("h4"), { textContent: title }));
    for (const line of here) {
      const text = document.createElement("div");
      text.className = "code ln";
      text.textContent = [...line.children].map((part) => part.textContent.trim()).join(" ");
      made.append(text);
      if (line.dataset.values) {
        made.append(Object.assign(document.createElement("pre"), { textContent: line.dataset.values }));
      }
    }
    return made;
  }

  function focus(line) {
    for (const other of inPanel(line.closest("figure"))) other.tabIndex = -1;
    line.tabIndex = 0;
    line.focus();
  }

  function move(line, key) {
    const here = inPanel(line.closest("figure"));
    const at = here.indexOf(line);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: here.length - 1 }[key];
    if (next !== undefined) return here[next];
    const panel = panels[panels.indexOf(line.closest("figure")) + (key === "ArrowRight" ? 1 : -1)];
    if (!panel) return undefined;
    const other = inPanel(panel);
    return other.find((candidate) => candidate.classList.contains("lit")) || other[0];
  }

  for (const panel of panels) inPanel(panel).forEach((line, k) => { line.tabIndex = k ? -1 : 0; });
  for (const line of lines) {
    line.classList.add("can");
    line.setAttribute("role", "button");
    line.setAttribute("aria-pressed", "false");
    line.addEventListener("mouseenter", () => pinned || light(line));
    line.addEventListener("mouseleave", () => pinned || light(null));
    line.addEventListener("focus", () => pinned || light(line));
    line.addEventListener("blur", () => pinned || light(null));
    line.addEventListener("click", () => pin(line));
    line.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") pin(line);
      else if (/^(Arrow|Home|End)/.test(event.key)) {
        const next = move(line, event.key);
        if (next) focus(next);
      } else return;
      event.preventDefault();
    });
  }
  const letGo = () => {
    const line = pinned;
    if (line) pin(line);
    return line;
  };
  kept.querySelector("button").addEventListener("click", () => focus(letGo()));
  layer.addEventListener("keydown", (event) => event.key === "Escape" && letGo());

  const stages = [...layer.querySelectorAll(".stage")];
  const radios = [...layer.querySelectorAll(".steps input")];
  const [previous, following] = layer.querySelectorAll(".steps button");
  function show(k) {
    stages.forEach((stage, i) => stage.classList.toggle("on", i === k));
    radios[k].checked = true;
    previous.disabled = k === 0;
    following.disabled = k === stages.length - 1;
  }
  const step = (by) => show(stages.findIndex((stage) => stage.classList.contains("on")) + by);
  radios.forEach((radio, k) => radio.addEventListener("change", () => show(k)));
  previous.addEventListener("click", () => step(-1));
  following.addEventListener("click", () => step(1));
  show(0);
}
