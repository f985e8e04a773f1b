<#
Installs MTP Launcher into a distribution of WSL 2, from Windows; PowerShell 5 or later.

  install-in-wsl.ps1                        asks which distribution, checks it, installs, and makes a shortcut
  install-in-wsl.ps1 -Distribution NAME     into this one
  install-in-wsl.ps1 -Check                 only reports what is there and what is missing
  install-in-wsl.ps1 -Uninstall             removes the program and the shortcut; models, settings, history stay

Run it as: powershell -ExecutionPolicy Bypass -File install-in-wsl.ps1

Its folder must contain inside.sh, manifest.json, manifest.json.minisig and mtp-launcher_X_amd64.deb of the same release;
-Package names a .deb in another folder, which has its manifest, too. In a distribution without apt, the release's
install.sh is used. This script runs inside.sh only if it has the SHA-256 below, and inside.sh verifies the maintainer's
signature.

The .deb puts the program into the Start menu by itself; the shortcut is for the desktop, and opens the window without
a console. WSL's own settings are not changed: `mtp-launcher doctor`, which runs at the end, suggests a .wslconfig
and copies it on request.
#>
param(
    [string] $Distribution = '',
    [string] $Package = '',
    [switch] $Check,
    [switch] $Uninstall
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

# Written by installer/wsl/build-install.
$inside_sha256 = ''

$inside = Join-Path $PSScriptRoot 'inside.sh'
$data = Join-Path $env:LOCALAPPDATA 'mtp-launcher'
# WSL of the Microsoft Store, and that of Windows; a PowerShell of 32 bits is shown other folders by the usual names.
$wslg = $env:ProgramW6432, $env:ProgramFiles | Where-Object { $_ } | ForEach-Object { Join-Path $_ 'WSL\wslg.exe' }
$wslg = @($wslg) + @('System32', 'Sysnative' | ForEach-Object { Join-Path $env:SystemRoot "$_\wslg.exe" })

# Ends the script with an error: Stop-With WHAT_HAPPENED WHAT_TO_DO
function Stop-With([string] $What, [string] $Remedy) {
    throw (New-Object System.OperationCanceledException "$What`n$Remedy")
}

# Stops unless inside.sh is the one that was made with this script.
function Assert-Inside {
    if (-not (Test-Path -LiteralPath $inside)) { Stop-With "There is no $inside." 'It comes beside this script.' }
    if (-not $inside_sha256) {
        Stop-With 'This copy of install-in-wsl.ps1 is from a checkout, not from a release.' `
            'Use the one of a release.'
    }
    if ((Get-FileHash -LiteralPath $inside -Algorithm SHA256).Hash -ne $inside_sha256) {
        Stop-With "$inside is not the file of this release: its SHA-256 differs." `
            'Download all files of the release again.'
    }
}

# The distributions that are installed.
function Get-Distribution {
    $listed = & wsl.exe --list --quiet
    if ($LASTEXITCODE -ne 0) { Stop-With 'WSL has no distribution.' 'In Windows: wsl --install -d Debian' }
    # Older versions of WSL write UTF-16, which arrives with a zero after each letter.
    $names = $listed | ForEach-Object { $_.Replace("`0", '').Trim() }
    return @($names | Where-Object { $_ -and $_ -notlike 'docker-desktop*' })
}

function Select-Distribution {
    $names = @(Get-Distribution)
    if ($Distribution) {
        if ($names -notcontains $Distribution) {
            Stop-With "There is no distribution $Distribution." "There are: $($names -join ', ')"
        }
        return $Distribution
    }
    if ($names.Count -eq 0) { Stop-With 'WSL has no distribution.' 'In Windows: wsl --install -d Debian' }
    if ($names.Count -eq 1) { return $names[0] }
    for ($at = 0; $at -lt $names.Count; $at++) { Write-Host "  $($at + 1)  $($names[$at])" }
    $answer = 0
    $typed = Read-Host 'Number of the distribution to install into'
    if (-not [int]::TryParse($typed, [ref] $answer) -or $answer -lt 1 -or $answer -gt $names.Count) {
        Stop-With "$typed is not one of these numbers." 'Run it again.'
    }
    return $names[$answer - 1]
}

# Runs inside.sh as a user of the distribution, in a folder of Windows: Invoke-Inside NAME USER FOLDER ARGUMENTS
function Invoke-Inside([string] $Name, [string] $User, [string] $Folder, [string[]] $Arguments) {
    $as = @()
    if ($User) { $as = '-u', $User }
    $script = ConvertTo-Linux $Name $inside
    & wsl.exe -d $Name @as --cd $Folder --exec sh $script @Arguments
}

# The path of a file of Windows as the distribution sees it.
function ConvertTo-Linux([string] $Name, [string] $Path) {
    $path = & wsl.exe -d $Name --exec wslpath -a -u $Path.Replace('\', '/')
    if ($LASTEXITCODE -ne 0) {
        Stop-With "$Name cannot read $Path." 'Are Windows drives switched off in /etc/wsl.conf ([automount])?'
    }
    return $path
}

# Whether the distribution has a program.
function Test-Program([string] $Name, [string] $Program) {
    & wsl.exe -d $Name --exec sh -c "command -v $Program >/dev/null"
    return $LASTEXITCODE -eq 0
}

function Find-Package([bool] $Debian) {
    if ($Package) { return (Resolve-Path -LiteralPath $Package).ProviderPath }
    $pattern = 'install.sh'
    if ($Debian) { $pattern = 'mtp-launcher_*_amd64.deb' }
    $found = @(Get-ChildItem -LiteralPath $PSScriptRoot -Filter $pattern | Sort-Object LastWriteTime -Descending)
    if ($found.Count -eq 0) {
        Stop-With "There is no $pattern in $PSScriptRoot." 'Copy it there from the release, or name it with -Package.'
    }
    return $found[0].FullName
}

function Install-Inside([string] $Name) {
    $debian = Test-Program $Name 'apt-get'
    $file = Find-Package $debian
    $user = ''
    if ($file -like '*.deb') { $user = 'root' }
    Write-Host "Installing $file into $Name"
    $path = ConvertTo-Linux $Name $file
    Invoke-Inside $Name $user $PSScriptRoot 'install', $path
    if ($LASTEXITCODE -ne 0) { Stop-With 'The installation failed.' 'See above, and run this again to go on.' }
}

function Get-Shortcut([string] $Name) {
    return Join-Path ([Environment]::GetFolderPath('Desktop')) "MTP Launcher ($Name).lnk"
}

# Starts the window by wslg.exe, which opens no console.
function Write-Shortcut([string] $Name) {
    $starter = $wslg | Where-Object { Test-Path -LiteralPath $_ } | Select-Object -First 1
    if (-not $starter) {
        Write-Host 'There is no wslg.exe, so no shortcut was made. In Windows: wsl --update'
        return
    }
    $command = Invoke-Inside $Name '' $PSScriptRoot 'command'
    New-Item -ItemType Directory -Force -Path $data | Out-Null
    $folder = (ConvertTo-Linux $Name $data).TrimEnd('/')
    Invoke-Inside $Name '' $PSScriptRoot 'icon', "$folder/mtp-launcher-wsl.ico"
    $link = (New-Object -ComObject WScript.Shell).CreateShortcut((Get-Shortcut $Name))
    $link.TargetPath = $starter
    $link.Arguments = "-d `"$Name`" --cd `"~`" -- $command gui"
    $link.IconLocation = Join-Path $data 'mtp-launcher-wsl.ico'
    $link.Description = 'Runs large language models on this computer, and shows how fast'
    $link.Save()
}

function Uninstall-Inside([string] $Name) {
    $command = Invoke-Inside $Name '' $PSScriptRoot 'command'
    if ($LASTEXITCODE -ne 0) { Stop-With "MTP Launcher is not in $Name." 'Name another one with -Distribution.' }
    if ($command -eq '/usr/bin/mtp-launcher') {
        & wsl.exe -d $Name -u root --exec apt-get purge -y mtp-launcher
    } else {
        & wsl.exe -d $Name --cd '~' --exec sh .local/lib/mtp-launcher/install.sh --uninstall
    }
    if ($LASTEXITCODE -ne 0) { Stop-With 'It could not be removed.' 'See above, and run this again to go on.' }
    $link = Get-Shortcut $Name
    if (Test-Path -LiteralPath $link) { Remove-Item -LiteralPath $link }
    $icon = Join-Path $data 'mtp-launcher-wsl.ico'
    if (Test-Path -LiteralPath $icon) { Remove-Item -LiteralPath $icon }
}

function Install-Program([string] $Name) {
    Write-Host "$Name`:"
    Invoke-Inside $Name '' $PSScriptRoot 'check'
    $ready = $LASTEXITCODE -eq 0
    if ($Check) {
        if (-not $ready) { $script:code = 1 }
        return
    }
    if (-not $ready) { Stop-With 'Something is missing.' 'See above. Run this again when it is there.' }
    Install-Inside $Name
    Write-Shortcut $Name
    Write-Host 'It is installed. mtp-launcher doctor reports:'
    & wsl.exe -d $Name --cd '~' --exec (Invoke-Inside $Name '' $PSScriptRoot 'command') doctor
}

$before = $env:WSL_UTF8
$encodingBefore = [Console]::OutputEncoding
$code = 0
try {
    $env:WSL_UTF8 = '1'
    # Linux programs write paths as UTF-8, of which the console's code page would change many letters.
    try { [Console]::OutputEncoding = New-Object System.Text.UTF8Encoding $false } catch { $null = $_ } # no console
    if (-not (Get-Command wsl.exe -ErrorAction SilentlyContinue)) {
        Stop-With 'This Windows has no WSL.' 'In a PowerShell of an administrator: wsl --install'
    }
    Assert-Inside
    $chosen = Select-Distribution
    if ($Uninstall) { Uninstall-Inside $chosen } else { Install-Program $chosen }
} catch [System.OperationCanceledException] {
    $code = 1
    $lines = $_.Exception.Message -split "`n", 2
    [Console]::Error.WriteLine("Error: $($lines[0])`r`n       $($lines[1])")
} catch {
    $code = 1
    [Console]::Error.WriteLine("Error: $($_.Exception.Message)`r`n       Run this again to go on.")
} finally {
    $env:WSL_UTF8 = $before
    try { [Console]::OutputEncoding = $encodingBefore } catch { $null = $_ }
}
exit $code
