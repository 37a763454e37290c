// Before the page is drawn: the colours that this browser chose last, else those of the system.
const chosen = localStorage.getItem("wids-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
