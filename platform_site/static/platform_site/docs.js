// Draws the API reference. A file of its own, since the page's policy lets no script stand in the page.
// Swagger UI has both colour schemes, chosen by a class on the root element; which one is the reader's to say.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const dress = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", dress);
dress();

const place = document.getElementById("reference");
window.ui = SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  filter: true,
  persistAuthorization: false, // a token pasted here is forgotten with the page
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "none", // drawing every operation takes long
  validatorUrl: null, // would send the description to somebody else's server
});
