<#
Proves install.ps1 on a real Windows, in the PowerShell that runs this: install, use, install again, uninstall; and that
install-in-wsl.ps1 can be read by it.

  .ci\powershell.ps1 FILES      the folder that .ci/signed-files left
#>
param([Parameter(Mandatory)] [string] $Files)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
$root = Split-Path $PSScriptRoot
$shell = (Get-Process -Id $PID).Path
$install = Join-Path (Resolve-Path $Files) 'install.ps1'

# Runs a script as users do, in a process of its own.
function Invoke-Script([string[]] $Arguments) {
    & $shell -NoProfile -ExecutionPolicy Bypass -File @Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Arguments ended with $LASTEXITCODE" }
}

foreach ($script in $install, (Join-Path $root 'installer\wsl\install-in-wsl.ps1')) {
    $errors = $null
    [void] [System.Management.Automation.Language.Parser]::ParseFile($script, [ref] $null, [ref] $errors)
    if ($errors) { throw "$script is not understood: $errors" }
}
$env:MTP_LAUNCHER_RELEASE_KEY = Get-Content (Join-Path $Files 'minisign.pub') | Select-Object -Last 1
Invoke-Script @($install)
$command = Get-ChildItem (Join-Path $env:LOCALAPPDATA 'Programs\mtp-launcher\bin') | Select-Object -First 1
& $command.FullName --version
& $command.FullName demo --headless
if ($LASTEXITCODE -ne 0) { throw 'the demo fails' }
Invoke-Script @($install)
Invoke-Script @($install, '-Uninstall')
if (Test-Path $command.FullName) { throw 'the command is left' }
"install.ps1 is proved on PowerShell $($PSVersionTable.PSVersion)"
