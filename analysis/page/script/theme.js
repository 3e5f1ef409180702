// The theme follows the system until the reader chooses; the choice is kept where the browser lets a file keep it.

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function kept() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

function isDark() {
  return (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
}

function showTheme() {
  themeButton.textContent = isDark() ? "Light theme" : "Dark theme";
  document.dispatchEvent(new Event("themechange"));
}

themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("theme", chosen); } catch { /* kept for this view only */ }
  showTheme();
});
systemDark.addEventListener("change", showTheme);
if (["light", "dark"].includes(kept())) document.documentElement.dataset.theme = kept();
showTheme();

/** The text that ``packed`` put into the script element of that id: base64 of gzip. */
async function unpack(id) {
  const packed = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i); // Uint8Array.from takes 15 times as long
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
