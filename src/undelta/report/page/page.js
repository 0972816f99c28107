// The page itself: light and dark, switches between panels, commands to copy.

{
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = isDark() ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();
}

for (const choice of document.querySelectorAll(".choice")) {
  const inputs = [...choice.querySelectorAll("fieldset input")];
  if (!inputs.length) continue;
  const show = () => {
    const chosen = inputs.find((input) => input.checked).value;
    for (const panel of choice.querySelectorAll("[data-panel]")) panel.hidden = panel.dataset.panel !== chosen;
  };
  for (const input of inputs) input.addEventListener("change", show);
  show();
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      // Not every browser lets a local file write to the clipboard; the text is then selected instead.
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// Paper has nothing to click: what is folded is opened for it, and folded again.
const folded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    folded.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of folded.splice(0)) details.open = false;
});
