// Package ui has no files: Argo's module lacks its built user interface, without which its server cannot be built.
package ui

import "embed"

const EMBED_PATH = "."

var Embedded embed.FS
