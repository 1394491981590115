const button = document.getElementById("theme");
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
const say = () => {
  const other = now() === "dark" ? "light" : "dark";
  button.textContent = other === "dark" ? "Dark" : "Light";
  button.setAttribute("aria-label", "Show in " + other + " colours");
};
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = now() === "dark" ? "light" : "dark";
  say();
});
dark.addEventListener("change", say);
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
say();
